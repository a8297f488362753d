"""Faster implementations of the reference model, with the same results up to rounding.

encoder.py    `CharCNN` by table lookup: for inference, and for training with a hand-written gradient
inference.py  all layers of the biLM for inference: no padding, no gradients, prepared weights
training.py   a window of running text with a hand-written LSTM gradient
int8.py       LSTM weights in int8, for inference
products.py   x · W by the fastest kernel of the machine
cache.py      token vectors by word, and detection of changed weights
"""
