"""The character encoder by table lookup, for inference and for training.

A convolution of embedded characters is a sum of table rows, because an embedding has few distinct rows:

    T_k = E · W_k                              what each character adds to each filter, at place k of the window
    y_p = Σ_k T_k[c_{p+k}]                     the filters at window p
    ∂/∂T_k[c] = Σ ∂/∂y_p over all windows p with c_{p+k} = c

Words are sorted by length, and only windows up to the end of a word are computed: all later windows see padding alone.
`TokenVectorCache` keeps the vectors of words for later batches.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.bilm.encoder import CharCNN, CharWordCNN, Highway
from torchelmo.bilm.fast.int8 import HalfLinear, sigmoid_rows
from torchelmo.bilm.fast.products import (
    HalfProduct,
    PlainProduct,
    Precision,
    Product,
    Tuning,
    choose_product,
    has_half,
)
from torchelmo.runtime import in_parallel, release_freed_memory

_FEW_WORDS = 128  # that "int8" encodes together, to need less memory
_BLOCK = 32  # rows that are multiplied together where float16 kernels are missing
# One lock for all caches: it is only held for a lookup or an insertion, never while words are encoded. A fork waits for
# it, so that a child process never inherits a lock that no thread will release.
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class FastEncoder:
    """Compute what `CharCNN` or `CharWordCNN` computes, without gradients: ids (n, …) -> (n, projection_dim).

    With "int8" all weights are float16, because a few words have outliers, which int8 rounds badly, and the rounding of
    a word does not depend on the others.
    """

    def __init__(self, encoder: CharCNN, precision: Precision, tuning: Tuning) -> None:
        with torch.inference_mode():
            self.activation, self.chunk = encoder.config.activation, tuning.table_chunk
            self.by_rows = precision == "int8"
            embedding = encoder.embedding.detach()  # PyTorch rounds some products differently if gradients are needed
            layers = encoder.conv_layers()
            self.tables = _join_tables([_make_tables(embedding, layer.weight.detach()) for layer in layers])
            self.bias = torch.cat([layer.bias for layer in layers if layer.bias is not None])
            if precision != "float32":
                has_half()  # tries the operator once, before the threads
            highways = [(highway, precision, tuning) for highway in encoder.highway_layers()]
            self.highways = in_parallel(_FastHighway, highways, embedding.device)  # packing uses one core
            last = encoder.projection
            self.projection = None if last is None else _prepare([last], precision, tuning)[0]
            self.word_vectors = encoder.word_vectors.detach() if isinstance(encoder, CharWordCNN) else None
        release_freed_memory()  # of joined and converted weights

    def __call__(self, ids: Tensor) -> Tensor:
        if self.by_rows and len(ids) > _FEW_WORDS:
            return torch.cat([self(words) for words in ids.split(_FEW_WORDS)])
        with torch.inference_mode():
            characters = ids if self.word_vectors is None else ids[:, :-1]
            features = self._convolve(characters)
            if self.activation == "relu":
                features.relu_()
            elif self.by_rows:
                sigmoid_rows(features, out=features, function=torch.tanh)
            else:
                features.tanh_()
            for highway in self.highways:
                features = highway(features)
            vectors = features if self.projection is None else self.projection(features)
            return vectors if self.word_vectors is None else vectors + self.word_vectors[ids[:, -1] - 1]

    def _convolve(self, ids: Tensor) -> Tensor:
        words = _shortest_first(ids)
        widest, end = len(self.tables), self.tables.shape[1] - 1
        words = words._replace(ids=F.pad(words.ids, (0, widest - 1), value=end))
        pooled = self.bias.new_empty(len(ids), len(self.bias))
        for rows, windows in _chunks(words, self.tables, self.chunk):
            torch.amax(_sum_rows(self.tables, windows), dim=1, out=pooled[rows])
        return torch.empty_like(pooled).index_copy_(0, words.order, pooled.add_(self.bias))


class _Linear:
    """x · W + b, of several layers side by side."""

    def __init__(self, layers: Sequence[nn.Linear | HalfLinear], precision: Precision, tuning: Tuning) -> None:
        weights, biases = [layer.weight.detach() for layer in layers], [layer.bias.detach() for layer in layers]
        weight, self.bias = (some[0] if len(some) == 1 else torch.cat(some) for some in (weights, biases))
        weight = weight.to(self.bias.dtype).T
        if precision == "int8":
            self.product: Product = HalfProduct(weight) if has_half() else _InBlocks(weight)
        else:
            self.product = choose_product(weight, precision, tuning)

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)


def _prepare(
    layers: Sequence[nn.Linear | HalfLinear], precision: Precision, tuning: Tuning
) -> list[Callable[[Tensor], Tensor]]:
    """Return functions that compute x · W + b of layers: one for all of them, or one for each."""
    if precision == "int8" and has_half() and all(isinstance(layer, HalfLinear) for layer in layers):
        return [layer.packed() for layer in layers if isinstance(layer, HalfLinear)]
    return [_Linear(layers, precision, tuning)]


class _InBlocks(PlainProduct):
    """Multiply blocks of equal size, so that the rounding of a row does not depend on the others."""

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        full = F.pad(x, (0, 0, 0, -len(x) % _BLOCK))
        return torch.cat([super(_InBlocks, self).__call__(block, add) for block in full.split(_BLOCK)])[: len(x)]


class _FastHighway:
    """Compute gate and transform, in one product where that needs no second copy of their weights."""

    def __init__(self, highway: Highway, precision: Precision, tuning: Tuning) -> None:
        self.linears = _prepare([highway.carry, highway.transform], precision, tuning)
        self.by_rows = precision == "int8"

    def __call__(self, x: Tensor) -> Tensor:
        products = [linear(x) for linear in self.linears]
        gate, transformed = products if len(products) > 1 else products[0].chunk(2, dim=1)
        gate = sigmoid_rows(gate, out=gate) if self.by_rows else gate.sigmoid_()
        return torch.lerp(x, transformed.relu_(), gate)


class TokenVectorCache:
    """Map words to token vectors (dim,). Threads may share it.

    At most `capacity` words are kept; the least recently used are dropped first. All are dropped when the key of a call
    differs from the key of the call before. Set `frozen` to keep the words that are there and add no others: the last
    digits of a vector can depend on the words it was encoded with, and a frozen cache makes them independent of
    earlier calls.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.frozen = False
        self._slots: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._table: Tensor | None = None
        self._key: Hashable = None

    def __len__(self) -> int:
        return len(self._slots)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenVectorCache, (self.capacity,)  # a copy starts empty

    def clear(self) -> None:
        """Drop all words."""
        with _LOCK:
            self._drop_all(None)

    def look_up(self, words: Sequence[str], key: Hashable = None) -> tuple[Tensor | None, list[int]]:
        """Return the vectors (n_words, dim) of distinct words, and the positions of those that are not kept.

        The vectors are a copy. Those of missing words are undefined; without any kept word they are None.
        """
        with _LOCK:
            if key != self._key:
                self._drop_all(key)
            slots = [self._slots.get(word, -1) for word in words]
            for word, slot in zip(words, slots, strict=True):
                if slot >= 0:
                    self._slots.move_to_end(word)
            vectors = None if self._table is None else self._table[torch.tensor(slots).clamp_min_(0)]
        return vectors, [position for position, slot in enumerate(slots) if slot < 0]

    def add(self, words: Sequence[str], vectors: Tensor, key: Hashable = None) -> None:
        """Keep the vectors (n_words, dim) of words that `look_up` did not find with this key."""
        with _LOCK:
            if self.frozen or key != self._key:
                return
            words, vectors = words[: self.capacity], vectors[: self.capacity]
            if not words:
                return
            table = self._grow(min(self.capacity, len(self._slots) + len(words)), vectors)
            slots = [self._assign_slot(word) for word in words]
            table.index_copy_(0, torch.tensor(slots, device=vectors.device), vectors)

    def _assign_slot(self, word: str) -> int:
        """Return a free slot, or the slot of the least recently used word."""
        if word in self._slots:  # another thread added it first
            return self._slots[word]
        full = len(self._slots) >= self.capacity
        slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
        self._slots[word] = slot
        return slot

    def _grow(self, n_words: int, like: Tensor) -> Tensor:
        """Double the table until `n_words` fit, so that a short run does not pay for a full cache."""
        rows = 0 if self._table is None else len(self._table)
        if self._table is None or rows < n_words:
            with torch.inference_mode(False):  # a table made in inference mode could not be written outside of it
                table = like.new_empty(min(self.capacity, max(n_words, 2 * rows, 256)), like.shape[1])
            if self._table is not None:
                table[:rows] = self._table
            self._table = table
        return self._table

    def _drop_all(self, key: Hashable) -> None:
        self._slots.clear()
        self._table, self._key = None, key


# Training


def encode_types(encoder: CharCNN, ids: Tensor) -> Tensor:
    """Compute `encoder(ids)` with its gradients, faster: (n, max_characters) -> (n, projection_dim)."""
    layers = encoder.conv_layers()
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    pooled = _Convolutions.apply(ids.long(), encoder.embedding, *weights)  # type: ignore[no-untyped-call]
    pooled = pooled + torch.cat([bias for bias in biases if bias is not None])
    features = torch.relu(pooled) if encoder.config.activation == "relu" else torch.tanh(pooled)
    return encoder.combine(features)


class _Convolutions(torch.autograd.Function):
    """ids, E (n_characters, char_dim), weights (count, char_dim, width) -> maxima (n, n_filters), no bias.

    The filters are distributed over the cores.
    """

    @staticmethod
    def forward(ctx: Any, ids: Tensor, embedding: Tensor, *weights: Tensor) -> Tensor:
        ctx.words = words = _shortest_first(ids)
        ctx.save_for_backward(embedding, *weights)
        pooled = embedding.new_empty(len(ids), sum(map(len, weights)))
        columns = pooled.split([len(weight) for weight in weights], dim=1)
        with torch.autocast(ids.device.type, enabled=False):
            parts = zip(_split_for_cores(weights, 0), _split_for_cores(columns, 1))
            in_parallel(_pool, [(words, embedding, *part) for part in parts], ids.device)
        return torch.empty_like(pooled).index_copy_(0, words.order, pooled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        embedding, *weights = ctx.saved_tensors
        columns = gradient[ctx.words.order].split([len(weight) for weight in weights], dim=1)
        with torch.autocast(gradient.device.type, enabled=False):
            parts = zip(_split_for_cores(weights, 0), _split_for_cores(columns, 1))
            arguments = [(ctx.words, embedding, *part) for part in parts]
            results = in_parallel(_pool_backward, arguments, gradient.device)
        d_weights = [torch.cat(pieces) for pieces in zip(*(result[1] for result in results))]
        return None, torch.stack([result[0] for result in results]).sum(dim=0), *d_weights


def _pool(words: "_Words", embedding: Tensor, weights: Sequence[Tensor], pooled: Sequence[Tensor]) -> None:
    """Write the maxima of each convolution into its columns."""
    for weight, columns in zip(weights, pooled):
        tables = _make_tables(embedding, weight)
        for rows, ids in _chunks(words, tables, Tuning.table_chunk):
            torch.amax(_sum_rows(tables, ids), dim=1, out=columns[rows])


def _pool_backward(
    words: "_Words", embedding: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of embedding and weights. Repeating the forward pass is cheaper than saving it."""
    d_embedding, d_weights = torch.zeros_like(embedding), []
    for weight, gradient in zip(weights, gradients):
        tables = _make_tables(embedding, weight)
        d_tables = torch.zeros_like(tables)
        for rows, ids in _chunks(words, tables, Tuning.table_chunk):
            values = _sum_rows(tables, ids)
            # Windows that share the maximum share its gradient, as in the gradient of `amax`.
            d_values = values.eq_(values.amax(dim=1, keepdim=True))
            d_values.mul_((gradient[rows] / d_values.sum(dim=1)).unsqueeze(1))
            for k in range(len(tables)):
                d_tables[k].index_add_(0, ids[:, :, k].reshape(-1), d_values.flatten(0, 1))
        d_embedding += torch.bmm(d_tables, weight.permute(2, 0, 1)).sum(dim=0)
        d_weights.append(torch.matmul(embedding.T, d_tables).permute(2, 1, 0))
    return d_embedding, d_weights


def _split_for_cores(tensors: Sequence[Tensor], dim: int) -> list[list[Tensor]]:
    """Split every tensor along `dim`, and return one list of parts for each core."""
    n = max(1, min(torch.get_num_threads(), *(tensor.shape[dim] for tensor in tensors)))
    return [list(parts) for parts in zip(*(tensor.tensor_split(n, dim) for tensor in tensors))]


# Tables


class _Words(NamedTuple):
    """Words as character ids, shortest first."""

    ids: Tensor  # (n, max_characters)
    lengths: list[int]  # the number of characters before the run of equal ids at the end
    order: Tensor  # (n,) positions in the input


def _make_tables(embedding: Tensor, weight: Tensor) -> Tensor:
    """Return the summands of each filter (width, n_characters, count), by place in the window and character."""
    return torch.matmul(embedding, weight.permute(2, 1, 0))


def _join_tables(tables: Sequence[Tensor]) -> Tensor:
    """Join the tables of all widths: (widest, n_characters + 1, n_filters), so that one sum of rows serves all.

    A narrow filter adds nothing at places beyond its width. The extra character comes after the last id of a word: it
    is −∞ for every filter that reaches it, so that the maximum ignores such windows.
    """
    widest, n_characters = max(map(len, tables)), tables[0].shape[1]
    joined = tables[0].new_zeros(widest, n_characters + 1, sum(table.shape[2] for table in tables))
    for table, columns in zip(tables, joined.split([table.shape[2] for table in tables], dim=2)):
        columns[: len(table), :-1] = table
        columns[: len(table), -1] = -torch.inf
    return joined


def _sum_rows(tables: Tensor, ids: Tensor) -> Tensor:
    """Windows of characters (words, windows, width) -> (words, windows, count)."""
    width, n_characters, _ = tables.shape
    rows = ids + torch.arange(0, width * n_characters, n_characters, device=ids.device)
    sums = F.embedding_bag(rows.flatten(0, 1), tables.flatten(0, 1), mode="sum")
    return sums.view(*ids.shape[:2], -1)


def _shortest_first(ids: Tensor) -> _Words:
    n_equal = (ids == ids[:, -1:]).flip(1).long().cumprod(dim=1).sum(dim=1)
    lengths, order = torch.sort(ids.shape[1] - n_equal, stable=True)
    return _Words(ids[order], lengths.tolist(), order)


def _chunks(words: _Words, tables: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of words of similar length, and their windows (words, windows, width) of characters."""
    width, _, count = tables.shape
    n, longest = words.ids.shape
    start = 0
    while start < n:
        end = min(n, start + max(1, chunk // (count * (words.lengths[start] + 1))))
        windows = min(words.lengths[end - 1] + 1, longest - width + 1)
        yield slice(start, end), words.ids[start:end, : windows + width - 1].unfold(1, width, 1)
        start = end


# Distinct words


def unique_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows (m, width) of ids (n, width), and for every row its position among them (n,).

    Rows are compared by a 64-bit hash, and the result is checked against the rows themselves: sorting single numbers is
    many times faster than sorting rows of fifty.
    """
    if ids.dim() != 2 or len(ids) == 0:
        return ids, torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
    hashes = (ids * _multipliers(ids.shape[1]).to(ids.device)).sum(dim=1)
    distinct, position = torch.unique(hashes, return_inverse=True)
    example = torch.empty_like(distinct).scatter_(0, position, torch.arange(len(ids), device=ids.device))
    rows = ids[example]
    if not torch.equal(rows[position], ids):  # two words share a hash: about one of 2^64 pairs
        rows, position = torch.unique(ids, dim=0, return_inverse=True)
    return rows, position


@cache
def _multipliers(width: int) -> Tensor:
    """Return fixed odd numbers; sums of products with them wrap around, which is fine for a hash."""
    generator = torch.Generator().manual_seed(2018)
    return torch.randint(-(2**62), 2**62, (width,), generator=generator) * 2 + 1
