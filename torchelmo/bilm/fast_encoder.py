"""The character encoder at inference: tables instead of convolutions, real word lengths instead of fifty positions.

A convolution over an embedding is a sum of table rows, T_k[c] = W_k · e(c), and beyond the end of a word every
window holds nothing but padding: one of those stands for all of them.
"""

import torch
from torch import Tensor

from torchelmo.bilm.char_cnn import CharCNN, Highway
from torchelmo.bilm.products import Precision, Product, choose_product
from torchelmo.text.characters import PADDING

_CHUNK_VALUES = 1 << 20  # windows × filters summed at once: they should not leave the cache before the maximum


class FastEncoder:
    """(n, max_characters) ids -> (n, projection_dim), as `CharCNN`, without gradients."""

    def __init__(self, encoder: CharCNN, precision: Precision) -> None:
        with torch.inference_mode():
            self.activation, self.n_filters = encoder.config.activation, encoder.config.n_filters
            self.convolutions = [_Tables(encoder.embedding, conv.weight, conv.bias) for conv in encoder.conv_layers()]
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
        features = torch.empty(len(ids), self.n_filters, device=ids.device, dtype=self.convolutions[0].bias.dtype)
        positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        lengths = ((ids != PADDING) * positions).amax(dim=1)
        longest_last = torch.argsort(lengths)
        start, sizes = 0, lengths[longest_last].tolist()
        while start < len(sizes):
            # Words of like length together: as many as keep the windows of the widest table in the cache.
            n_words = max(1, _CHUNK_VALUES // (max(t.count for t in self.convolutions) * (sizes[start] + 1)))
            end = min(start + n_words, len(sizes))
            some = longest_last[start:end]
            parts = [tables(ids[some], sizes[end - 1] + 1) for tables in self.convolutions]
            features.index_copy_(0, some, torch.cat(parts, dim=1))
            start = end
        return features.relu_() if self.activation == "relu" else features.tanh_()


class _Tables:
    """One convolution as tables: for each of its `width` places a row per character."""

    def __init__(self, embedding: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.count, _, self.width = weight.shape
        assert bias is not None
        self.bias = bias
        # (width, n_characters, count), place after place
        self.table = torch.einsum("ce,fek->kcf", embedding, weight).flatten(0, 1).contiguous()
        self.shift = torch.arange(self.width, device=embedding.device) * len(embedding)

    def __call__(self, ids: Tensor, n_windows: int) -> Tensor:
        """(n, max_characters) -> (n, count): the maximum over the first `n_windows` windows."""
        windows = ids.unfold(1, self.width, 1)[:, :n_windows] + self.shift
        sums = torch.nn.functional.embedding_bag(windows.reshape(-1, self.width), self.table, mode="sum")
        return sums.view(len(ids), -1, self.count).amax(dim=1).add_(self.bias)


class _Linear:
    """x · W + b for rows of a batch of words, which may be few."""

    def __init__(self, weight: Tensor, bias: Tensor, precision: Precision) -> None:
        self.product: Product = choose_product(weight.detach().T, precision, small_batches=True)
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
