"""Faster implementations of the reference model, with the same results up to rounding.

encoder.py    `CharCNN` by table lookup, a cache of its vectors, and a hand-written gradient for training
inference.py  all layers of the biLM for inference: no padding, no gradients, prepared weights
training.py   a window of running text with a hand-written LSTM gradient
int8.py       weights in int8, their products, and the modules of a model that was saved in int8
int8_layer.py a layer of LSTMs in int8
products.py   x · W by the fastest kernel of the machine, and detection of changed weights
"""
