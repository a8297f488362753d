"""The character encoder at inference: tables instead of convolutions, real word lengths instead of fifty positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.bilm.char_cnn import CharCNN, Highway
from torchelmo.bilm.char_tables import chunks, join_tables, make_tables, shortest_first, sum_rows
from torchelmo.bilm.products import Precision, Product, choose_product


class FastEncoder:
    """(n, max_characters) ids -> (n, projection_dim), as `CharCNN`, without gradients."""

    def __init__(self, encoder: CharCNN, precision: Precision) -> None:
        with torch.inference_mode():
            self.activation = encoder.config.activation
            embedding = encoder.embedding.detach()  # PyTorch rounds some products otherwise where gradients are wanted
            layers = encoder.conv_layers()
            self.tables = join_tables([make_tables(embedding, layer.weight.detach()) for layer in layers])
            self.bias = torch.cat([layer.bias for layer in layers if layer.bias is not None])
            self.highways = [_FastHighway(highway, precision) for highway in encoder.highway_layers()]
            self.projection: _Linear | None = None
            if encoder.projection is not None:
                self.projection = _Linear(encoder.projection.weight, encoder.projection.bias, precision)

    def __call__(self, ids: Tensor) -> Tensor:
        with torch.inference_mode():
            features = self._convolve(ids)
            for highway in self.highways:
                features = highway(features)
            return features if self.projection is None else self.projection(features)

    def _convolve(self, ids: Tensor) -> Tensor:
        words = shortest_first(ids)
        widest, beyond = len(self.tables), self.tables.shape[1] - 1
        words = words._replace(ids=F.pad(words.ids, (0, widest - 1), value=beyond))
        pooled = self.bias.new_empty(len(ids), len(self.bias))
        for rows, windows in chunks(words, self.tables):
            torch.amax(sum_rows(self.tables, windows), dim=1, out=pooled[rows])
        features = torch.empty_like(pooled).index_copy_(0, words.order, pooled.add_(self.bias))
        return features.relu_() if self.activation == "relu" else features.tanh_()


class _Linear:
    """x · W + b for rows of a batch of words, which may be few."""

    def __init__(self, weight: Tensor, bias: Tensor, precision: Precision) -> None:
        self.product: Product = choose_product(weight.detach().T, precision)
        self.bias = bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)


class _FastHighway:
    """Gate and transform in one product."""

    def __init__(self, highway: Highway, precision: Precision) -> None:
        weight = torch.cat([highway.carry.weight, highway.transform.weight])
        bias = torch.cat([highway.carry.bias, highway.transform.bias])
        self.linear = _Linear(weight, bias, precision)

    def __call__(self, x: Tensor) -> Tensor:
        gate, transformed = self.linear(x).chunk(2, dim=1)
        return torch.lerp(x, transformed.relu_(), gate.sigmoid_())
