"""A least-recently-used cache of token vectors."""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

# One lock for all caches: it is only held for a lookup or an insertion, never while words are encoded. A fork waits for
# it, so that a child process never inherits a lock that no thread will release.
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


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
