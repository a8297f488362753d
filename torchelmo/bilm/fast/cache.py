"""An LRU cache of finished token vectors: a word type is encoded once, across batches and calls."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

WeightsKey = tuple[tuple[int, ...], tuple[int, ...], bytes]  # places, versions, some values
_FEW = 8  # values of a large parameter that are looked at
_SMALL = 1 << 13  # values up to which a parameter is small


class Watch:
    """Parameters -> a key, another one when a parameter was replaced, moved or written to.

    Fused optimisers write without raising the version of a tensor, so a few values are compared, too. Where they
    stand is kept for the next call, and with it the memory: no other tensor can come to the same place unseen.
    """

    def __init__(self) -> None:
        self._seen: tuple[tuple[int, ...], list[Tensor]] = ((), [])

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, ()  # a copy looks at parameters of its own

    def __call__(self, parameters: Iterable[Tensor]) -> WeightsKey:
        tensors = list(parameters)
        places = tuple(tensor.data_ptr() for tensor in tensors)
        known, samples = self._seen
        if places != known:
            samples = [_sample(tensor.detach()) for tensor in tensors]
            self._seen = places, samples
        versions = tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
        # One copy and one comparison of bytes, for all together: this runs before every sentence. NaN equals itself.
        return places, versions, torch.cat(samples).cpu().view(torch.uint8).numpy().tobytes()


def _sample(tensor: Tensor) -> Tensor:
    """A view of some values from all over a tensor, the last one among them; (n,)."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor.reshape(-1)
    # Every row of a small one: training writes only to those rows of the character table that it reads.
    n = len(tensor) if tensor.numel() <= _SMALL else _FEW
    steps = [(size - 1) // max(1, n - 1) for size in tensor.shape]
    first = [size - 1 - step * (n - 1) for size, step in zip(tensor.shape, steps)]
    strides = tensor.stride()
    offset = tensor.storage_offset() + sum(i * stride for i, stride in zip(first, strides))
    return tensor.as_strided((n,), (sum(step * stride for step, stride in zip(steps, strides)),), offset)


class WordVectors:
    """Words -> (n, dim), encoding only those that are not kept; safe to share between threads.

    At most `capacity` words are kept, the least recently used are dropped first; all are dropped when `key`,
    which names the weights, changes. Once `closed`, nothing more is kept: a word's last digits depend on the words
    it is encoded with, and then on those of its own call only, not on what ran before.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.closed = False
        self._slots: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._table: Tensor | None = None
        self._key: Any = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        with self._lock:
            self._drop_all(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return WordVectors, (self.capacity,)  # a copy starts empty, with a lock of its own

    def __call__(self, words: Sequence[str], encode: Callable[[list[str]], Tensor], key: Any = None) -> Tensor:
        """(n_words, dim), in the order of `words`; `encode` makes the vectors of distinct words."""
        places: dict[str, int] = {}
        order = [places.setdefault(word, len(places)) for word in words]
        distinct = list(places)
        with self._lock:
            if key != self._key:
                self._drop_all(key)
            slots = [self._slots.get(word, -1) for word in distinct]
            for word, slot in zip(distinct, slots, strict=True):
                if slot >= 0:
                    self._slots.move_to_end(word)
            kept = None if self._table is None else self._table[torch.tensor(slots).clamp_min_(0)]
        missing = [place for place, slot in enumerate(slots) if slot < 0]
        if missing:
            new = encode([distinct[place] for place in missing])
            if kept is None:
                kept = new
            else:
                kept.index_copy_(0, torch.tensor(missing, device=new.device), new)
            with self._lock:
                if key == self._key and not self.closed:
                    self._keep([distinct[place] for place in missing], new)
        assert kept is not None, "a batch has at least one word"
        return kept[torch.tensor(order)]

    def _keep(self, words: list[str], vectors: Tensor) -> None:
        """Store new vectors in free slots, then in those of the least recently used words."""
        if len(words) > self.capacity:
            words, vectors = words[: self.capacity], vectors[: self.capacity]
        if not words:
            return
        self._grow(min(self.capacity, len(self._slots) + len(words)), vectors)
        assert self._table is not None
        slots = []
        for word in words:
            if word in self._slots:  # another thread was faster
                slot = self._slots[word]
            elif len(self._slots) < self.capacity:
                slot = len(self._slots)
            else:
                slot = self._slots.popitem(last=False)[1]
            self._slots[word] = slot
            slots.append(slot)
        self._table.index_copy_(0, torch.tensor(slots, device=vectors.device), vectors)

    def _grow(self, n_words: int, like: Tensor) -> None:
        """Double the table until `n_words` fit: a short run should not pay for a full cache."""
        rows = 0 if self._table is None else len(self._table)
        if rows >= n_words:
            return
        with torch.inference_mode(False):  # else a call under inference_mode would close the table to all later ones
            table = like.new_empty(min(self.capacity, max(n_words, 2 * rows, 256)), like.shape[1])
        if self._table is not None:
            table[:rows] = self._table
        self._table = table

    def _drop_all(self, key: Any) -> None:
        self._slots.clear()
        self._table, self._key = None, key
