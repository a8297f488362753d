"""The convolutions of the character encoder by tables, with their gradient written out: the fast path for training.

    ∂/∂T_k[c] = the sum of ∂/∂y_p over all windows p where c_{p+k} = c        (see char_tables.py)

The filters are shared out to the cores.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.bilm.encoder import CharCNN, Highway
from torchelmo.bilm.fast.products import Precision, Product, choose_product
from torchelmo.runtime import in_parallel


def unique_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """(n, width) -> its distinct rows (m, width), and for every row its place among them (n,).

    Rows are told apart by a 64-bit hash, and the result is checked against the rows themselves: sorting
    single numbers is many times faster than sorting rows of fifty.
    """
    if ids.dim() != 2 or len(ids) == 0:
        return ids, torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
    hashes = (ids * _multipliers(ids.shape[1]).to(ids.device)).sum(dim=1)
    distinct, place = torch.unique(hashes, return_inverse=True)
    example = torch.empty_like(distinct).scatter_(0, place, torch.arange(len(ids), device=ids.device))
    rows = ids[example]
    if not torch.equal(rows[place], ids):  # two words share a hash: once in about 2^64 pairs
        rows, place = torch.unique(ids, dim=0, return_inverse=True)
    return rows, place


@cache
def _multipliers(width: int) -> Tensor:
    """Fixed odd numbers; sums of products wrap around, which is what a hash wants."""
    generator = torch.Generator().manual_seed(2018)
    return torch.randint(-(2**62), 2**62, (width,), generator=generator) * 2 + 1


# Values that are worked on at once: few enough for the cache, enough to outweigh the calls.
_CHUNK_VALUES = 1 << 18


class Words(NamedTuple):
    """Words as characters, shortest first."""

    ids: Tensor  # (n, max_characters)
    lengths: list[int]  # where the run of equal characters at the end of each word begins
    order: Tensor  # (n,) their places in the input


def make_tables(embedding: Tensor, weight: Tensor) -> Tensor:
    """(width, n_characters, count): what each character adds to each filter, at each place of the window."""
    return torch.matmul(embedding, weight.permute(2, 1, 0))


def join_tables(tables: Sequence[Tensor]) -> Tensor:
    """The tables of all widths as one: (widest, n_characters + 1, n_filters), so that one sum of rows serves them all.

    A narrow filter adds nothing at the places that it has not. The character that is new stands after the last id of
    a word: −∞ for every filter that reaches it, whose maximum then leaves such windows out.
    """
    widest, n_characters = max(map(len, tables)), tables[0].shape[1]
    joined = tables[0].new_zeros(widest, n_characters + 1, sum(table.shape[2] for table in tables))
    for table, columns in zip(tables, joined.split([table.shape[2] for table in tables], dim=2)):
        columns[: len(table), :-1] = table
        columns[: len(table), -1] = -torch.inf
    return joined


def sum_rows(tables: Tensor, ids: Tensor) -> Tensor:
    """Windows of characters (words, windows, width) -> (words, windows, count)."""
    width, n_characters, _ = tables.shape
    rows = ids + torch.arange(0, width * n_characters, n_characters, device=ids.device)
    sums = F.embedding_bag(rows.flatten(0, 1), tables.flatten(0, 1), mode="sum")
    return sums.view(*ids.shape[:2], -1)


def shortest_first(ids: Tensor) -> Words:
    same = (ids == ids[:, -1:]).flip(1).long().cumprod(dim=1).sum(dim=1)
    lengths, order = torch.sort(ids.shape[1] - same, stable=True)
    return Words(ids[order], lengths.tolist(), order)


def chunks(words: Words, tables: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of a few words of like length, and their windows (words, windows, width) of characters."""
    width, _, count = tables.shape
    n, longest = words.ids.shape
    start = 0
    while start < n:
        end = min(n, start + max(1, _CHUNK_VALUES // (count * (words.lengths[start] + 1))))
        windows = min(words.lengths[end - 1] + 1, longest - width + 1)
        yield slice(start, end), words.ids[start:end, : windows + width - 1].unfold(1, width, 1)
        start = end


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


def encode_types(encoder: CharCNN, ids: Tensor) -> Tensor:
    """(n, max_characters) -> (n, projection_dim): what `encoder(ids)` gives, and its gradients."""
    layers = encoder.conv_layers()
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    pooled = _Convolutions.apply(ids.long(), encoder.embedding, *weights)  # type: ignore[no-untyped-call]
    pooled = pooled + torch.cat([bias for bias in biases if bias is not None])
    features = torch.relu(pooled) if encoder.config.activation == "relu" else torch.tanh(pooled)
    return encoder.combine(features)


class _Convolutions(torch.autograd.Function):
    """ids, E (n_characters, char_dim), weights (count, char_dim, width) -> maxima (n, n_filters), no bias."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, embedding: Tensor, *weights: Tensor) -> Tensor:
        ctx.words = words = shortest_first(ids)
        ctx.save_for_backward(embedding, *weights)
        pooled = embedding.new_empty(len(ids), sum(map(len, weights)))
        columns = pooled.split([len(weight) for weight in weights], dim=1)
        with torch.autocast(ids.device.type, enabled=False):
            shares = zip(_share(weights, 0), _share(columns, 1))
            in_parallel(_pool, [(words, embedding, *share) for share in shares], ids.device)
        return torch.empty_like(pooled).index_copy_(0, words.order, pooled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        embedding, *weights = ctx.saved_tensors
        columns = gradient[ctx.words.order].split([len(weight) for weight in weights], dim=1)
        with torch.autocast(gradient.device.type, enabled=False):
            shares = zip(_share(weights, 0), _share(columns, 1))
            parts = in_parallel(_pool_backward, [(ctx.words, embedding, *share) for share in shares], gradient.device)
        d_weights = [torch.cat(pieces) for pieces in zip(*(part[1] for part in parts))]
        return None, torch.stack([part[0] for part in parts]).sum(dim=0), *d_weights


def _pool(words: Words, embedding: Tensor, weights: Sequence[Tensor], pooled: Sequence[Tensor]) -> None:
    for weight, columns in zip(weights, pooled):
        tables = make_tables(embedding, weight)
        for rows, ids in chunks(words, tables):
            torch.amax(sum_rows(tables, ids), dim=1, out=columns[rows])


def _pool_backward(
    words: Words, embedding: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the embedding and of each weight. What went forward is cheaper to repeat than to keep."""
    d_embedding, d_weights = torch.zeros_like(embedding), []
    for weight, gradient in zip(weights, gradients):
        tables = make_tables(embedding, weight)
        d_tables = torch.zeros_like(tables)
        for rows, ids in chunks(words, tables):
            values = sum_rows(tables, ids)
            # Windows that share the maximum share its gradient, as `amax` has it.
            d_values = values.eq_(values.amax(dim=1, keepdim=True))
            d_values.mul_((gradient[rows] / d_values.sum(dim=1)).unsqueeze(1))
            for k in range(len(tables)):
                d_tables[k].index_add_(0, ids[:, :, k].reshape(-1), d_values.flatten(0, 1))
        d_embedding += torch.bmm(d_tables, weight.permute(2, 0, 1)).sum(dim=0)
        d_weights.append(torch.matmul(embedding.T, d_tables).permute(2, 1, 0))
    return d_embedding, d_weights


def _share(tensors: Sequence[Tensor], dim: int) -> list[list[Tensor]]:
    """For each core a part of every tensor along `dim`; fewer where there is too little to share."""
    n = max(1, min(torch.get_num_threads(), *(tensor.shape[dim] for tensor in tensors)))
    return [list(parts) for parts in zip(*(tensor.tensor_split(n, dim) for tensor in tensors))]
