"""The endless text that training reads: every row of a batch is one running text, `unroll` tokens at a time.

Sentences are shuffled anew each epoch and wait in one queue; a row that has read its sentence takes the next
one, the rows in their order. So nothing is padded, and over an epoch every sentence is read once. A sentence
of n tokens is n + 1 steps:

    forward   reads <S> w_1 … w_n    and expects w_1 … w_n </S>
    backward  reads </S> w_n … w_1   and expects w_n … w_1 <S>
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from torchelmo.config import Config, NonNegativeInt, Range, build_config
from torchelmo.errors import InputError
from torchelmo.lm.corpus import BEGIN_ID, END_ID, Corpus, Ids


class Window(NamedTuple):
    forward: Ids  # (batch, unroll): the word-type ids that the forward LSTM reads
    forward_targets: Ids  # (batch, unroll): for each, the softmax id of the token after it
    backward: Ids  # the same sentences, each from its end
    backward_targets: Ids  # for each, the softmax id of the token before it in the text


@dataclass(frozen=True)
class _Position(Config):
    """`Stream.position` as plain data."""

    seed: int
    n_sentences: int
    epoch: Annotated[int, Range(min=0, max=10**9)]
    taken: NonNegativeInt
    again: list[NonNegativeInt]
    sentence: list[NonNegativeInt]
    done: list[NonNegativeInt]


class Stream:
    """The rows of one rank: rank r has rows r·batch_size … (r + 1)·batch_size − 1 of the whole batch.

    All ranks know the whole queue: two ranks with a batch of b read what one reads with a batch of 2b.
    """

    def __init__(
        self, corpus: Corpus, *, batch_size: int, unroll: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        if batch_size < 1 or unroll < 1 or not 0 <= rank < n_ranks:
            raise InputError(
                "Stream: expected batch_size and unroll of at least 1 and a rank below n_ranks, "
                f"got {batch_size}, {unroll}, rank {rank} of {n_ranks}."
            )
        self.corpus, self.batch_size, self.unroll, self.seed = corpus, batch_size, unroll, seed
        self.n_rows = batch_size * n_ranks
        self._rows = slice(rank * batch_size, (rank + 1) * batch_size)
        self._steps = np.diff(corpus.offsets) + 1  # of each sentence
        self._head = 0  # the next sentence of the queue
        self._start(epoch=0, skip=0, again=[])
        # What each row reads: a sentence, and how many of its steps are done. No row has one yet.
        self._sentence = np.zeros(self.n_rows, dtype=np.int64)
        self._done = np.full(self.n_rows, self._steps[0])

    @property
    def tokens_per_window(self) -> int:
        """Steps of one direction in a window, over all ranks."""
        return self.n_rows * self.unroll

    @property
    def windows_per_epoch(self) -> int:
        return max(1, round(int(self._steps.sum()) / self.tokens_per_window))

    @property
    def epoch(self) -> float:
        """How many times the text was handed out: 1.5 is half-way through the second time."""
        epoch, taken, _ = self._taken()
        return epoch + taken / self.corpus.n_sentences

    @property
    def position(self) -> dict[str, Any]:
        """Where all ranks together are, ready for JSON; the same on every rank."""
        epoch, taken, again = self._taken()
        return {
            "seed": self.seed,
            "n_sentences": self.corpus.n_sentences,
            "epoch": epoch,
            "taken": taken,  # sentences of this epoch that are out of the queue
            "again": again,  # sentences that a stopped row left unfinished: they come before the queue
            "sentence": self._sentence.tolist(),
            "done": self._done.tolist(),
        }

    def seek(self, position: dict[str, Any]) -> None:
        """Go on at `position`: exactly, if the whole batch has as many rows as when it was taken.

        With more rows, the new ones begin with the next sentences. With fewer, the first rows go on, and the
        sentences that the others had not finished are read from their beginning first: none is lost.
        """
        found = build_config(_Position, position, where="position of the stream")
        n = self.corpus.n_sentences
        for name, own in (("seed", self.seed), ("n_sentences", n)):
            if getattr(found, name) != own:
                raise InputError(
                    f"Stream: expected a position with {name} {own}, got one with {getattr(found, name)}. "
                    "Resume with the data and seed of the run."
                )
        sentence, done = (np.array(row, dtype=np.int64) for row in (found.sentence, found.done))
        fits = len(sentence) == len(done) and found.taken <= n and max([0, *found.again, *found.sentence]) < n
        if not fits or (done > self._steps[sentence]).any():
            raise InputError(f"Stream: expected a position in a text of {n} sentences, got one outside of it.")
        rows = min(self.n_rows, len(sentence))
        unfinished = np.flatnonzero(done[rows:] < self._steps[sentence[rows:]]) + rows
        self._start(found.epoch, found.taken, [*found.again, *sentence[unfinished].tolist()])
        self._sentence = np.zeros(self.n_rows, dtype=np.int64)
        self._done = np.full(self.n_rows, self._steps[0])
        self._sentence[:rows], self._done[:rows] = sentence[:rows], done[:rows]

    def __iter__(self) -> Iterator[Window]:
        while True:
            yield self._next()

    def _next(self) -> Window:
        # A sentence has at least one step, so that a row takes at most `unroll` of them.
        if len(self._order) - self._head < self.tokens_per_window:
            self._refill()
        left = self._steps[self._sentence] - self._done
        heads = self._hand_out(np.maximum(self.unroll - left, 0))
        # Every piece of a sentence in the window: the rest of each row's old one, then its new ones.
        n_new = np.diff(heads)
        rows = np.arange(self.n_rows)
        row = np.concatenate([rows, np.repeat(rows, n_new)])
        sentence = np.concatenate([self._sentence, self._order[heads[0] : heads[-1]]])
        done = np.concatenate([self._done, np.zeros(heads[-1] - heads[0], dtype=np.int64)])
        by_row = np.argsort(row, kind="stable")
        row, sentence, done = row[by_row], sentence[by_row], done[by_row]
        # The last piece of a row is cut where its window ends; it is what the row goes on with.
        last = np.cumsum(n_new + 1) - 1
        length = self._steps[sentence] - done
        before = np.cumsum(length) - length
        first = last - n_new
        length[last] = self.unroll - (before[last] - before[first])
        self._sentence, self._done = sentence[last], done[last] + length[last]
        mine = (row >= self._rows.start) & (row < self._rows.stop)
        return self._window(sentence[mine], done[mine], length[mine])

    def _hand_out(self, need: Ids) -> Ids:
        """(n_rows + 1,): row r takes heads[r] … heads[r + 1] − 1 of the queue, for `need[r]` steps."""
        heads = np.empty(self.n_rows + 1, dtype=np.int64)
        heads[0] = head = self._head
        ends = self._ends
        for row, steps in enumerate(need.tolist()):
            if steps:
                head = int(ends.searchsorted(ends[head] + steps))
            heads[row + 1] = head
        self._head = head
        return heads

    def _window(self, sentence: Ids, done: Ids, length: Ids) -> Window:
        """Steps done … done + length − 1 of each sentence, side by side in both directions."""
        step = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length - done, length)
        begin = np.repeat(self.corpus.offsets[sentence], length)
        last = np.repeat(self._steps[sentence] - 1, length)
        tokens = self.corpus.tokens
        n = len(tokens) - 1

        def read(place: Ids, mark: int, at_mark: Any) -> Ids:
            ids = np.where(at_mark, mark, tokens[np.clip(place, 0, n)]).astype(np.int64)
            return ids.reshape(self.batch_size, self.unroll)

        at_start, at_end = step == 0, step == last
        targets = self.corpus.targets
        return Window(
            read(begin + step - 1, BEGIN_ID, at_start),
            targets(read(begin + step, END_ID, at_end)),
            read(begin + last - step, END_ID, at_start),
            targets(read(begin + last - step - 1, BEGIN_ID, at_end)),
        )

    def _start(self, epoch: int, skip: int, again: list[int]) -> None:
        """Fill the queue: sentences to be read again, then those of `epoch` after the first `skip`."""
        self._first, self._n_again = epoch * self.corpus.n_sentences + skip, len(again)
        self._next_epoch = epoch + 1
        self._order = np.concatenate([np.array(again, dtype=np.int64), self._shuffled(epoch)[skip:]])
        self._index_queue()

    def _refill(self) -> None:
        """Drop what was handed out, and add epochs until the queue holds enough for a window."""
        epoch, taken, again = self._taken()
        parts = [self._order[self._head :]]
        missing = self.tokens_per_window - len(parts[0])
        n_epochs = -(-missing // self.corpus.n_sentences)
        parts += [self._shuffled(self._next_epoch + i) for i in range(n_epochs)]
        self._next_epoch += n_epochs
        self._first, self._n_again = epoch * self.corpus.n_sentences + taken, len(again)
        self._order = np.concatenate(parts)
        self._index_queue()

    def _index_queue(self) -> None:
        self._ends = np.concatenate([[0], np.cumsum(self._steps[self._order])])  # steps before each sentence
        self._head = 0

    def _shuffled(self, epoch: int) -> Ids:
        return np.random.default_rng([self.seed, epoch]).permutation(self.corpus.n_sentences)

    def _taken(self) -> tuple[int, int, list[int]]:
        """The epoch, how many of its sentences are out of the queue, and those to be read again first."""
        again = self._order[self._head : self._n_again].tolist()
        epoch, taken = divmod(self._first + max(self._head - self._n_again, 0), self.corpus.n_sentences)
        return epoch, taken, again
