"""The endless streams of windows that training reads.

`Stream`, for language models: every row of a batch is one running text. Sentences are shuffled in every epoch and put
into one queue. A row that has reached the end of its sentence takes the next one from the queue, in the order of the
rows. So nothing is padded, and every sentence is read once per epoch. A sentence of n tokens is n + 1 steps:

    forward   reads <S> w_1 … w_n    and expects w_1 … w_n </S>
    backward  reads </S> w_n … w_1   and expects w_n … w_1 <S>

`SentenceStream`, for masked models: every row of a batch is one whole sentence, <S> w_1 … w_n </S>.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from torchelmo.config import Config, NonNegativeInt, Range, build_config
from torchelmo.errors import InputError
from torchelmo.lm.corpus import BEGIN_ID, END_ID, Corpus, Ids


class Window(NamedTuple):
    """The inputs and targets of one step."""

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
    """The windows of one rank: rank r reads rows r·batch_size … (r + 1)·batch_size − 1 of the whole batch.

    All ranks hold the whole queue: two ranks with b rows each read the same text as one rank with 2b rows.

    Args:
        corpus: The prepared text.
        batch_size: The number of rows of this rank.
        unroll: The number of tokens per row in a window.
        seed: Determines the order of the sentences.
        rank: The rank of this process.
        n_ranks: The number of processes.

    >>> from torchelmo.lm.corpus import write_corpus
    >>> import tempfile
    >>> corpus = write_corpus(tempfile.mkdtemp() + "/data", [["a", "bow"]])
    >>> next(iter(Stream(corpus, batch_size=1, unroll=3, seed=1))).forward.tolist()  # <S> a bow
    [[0, 3, 4]]
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
        # The sentence of each row, and how many of its steps are done: at first all, so each row takes a new one.
        self._sentence = np.zeros(self.n_rows, dtype=np.int64)
        self._done = np.full(self.n_rows, self._steps[0])

    @property
    def tokens_per_window(self) -> int:
        """The number of steps of one direction in a window, over all ranks."""
        return self.n_rows * self.unroll

    @property
    def windows_per_epoch(self) -> int:
        """The number of windows after which the text has been read once, rounded."""
        return max(1, round(int(self._steps.sum()) / self.tokens_per_window))

    @property
    def epoch(self) -> float:
        """How many times the text has been read; 1.5 is half-way through the second time."""
        epoch, taken, _ = self._taken()
        return epoch + taken / self.corpus.n_sentences

    @property
    def position(self) -> dict[str, Any]:
        """The position of all ranks in the stream, as plain data. It is the same on every rank."""
        epoch, taken, again = self._taken()
        return {
            "seed": self.seed,
            "n_sentences": self.corpus.n_sentences,
            "epoch": epoch,
            "taken": taken,  # sentences of this epoch that have left the queue
            "again": again,  # sentences to read again before the queue, because their row was removed
            "sentence": self._sentence.tolist(),
            "done": self._done.tolist(),
        }

    def seek(self, position: dict[str, Any]) -> None:
        """Continue at a position. This is exact if the whole batch has the same number of rows as before.

        With more rows, the new rows take the next sentences. With fewer rows, the unfinished sentences of the removed
        rows are read again from their start, so no sentence is lost.

        Raises:
            InputError: The position belongs to another text or seed, or is damaged.
        """
        found = build_config(_Position, position, where="position of the stream")
        n = self.corpus.n_sentences
        for name, own in (("seed", self.seed), ("n_sentences", n)):
            if getattr(found, name) != own:
                raise _other_run(name, own, getattr(found, name))
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
        # A sentence has at least one step, so a row takes at most `unroll` sentences.
        if len(self._order) - self._head < self.tokens_per_window:
            self._refill()
        left = self._steps[self._sentence] - self._done
        heads = self._hand_out(np.maximum(self.unroll - left, 0))
        # All pieces of sentences in the window: for each row, the rest of its old sentence, then new sentences.
        n_new = np.diff(heads)
        rows = np.arange(self.n_rows)
        row = np.concatenate([rows, np.repeat(rows, n_new)])
        sentence = np.concatenate([self._sentence, self._order[heads[0] : heads[-1]]])
        done = np.concatenate([self._done, np.zeros(heads[-1] - heads[0], dtype=np.int64)])
        by_row = np.argsort(row, kind="stable")
        row, sentence, done = row[by_row], sentence[by_row], done[by_row]
        # The last piece of a row ends with the window; the row continues with its rest.
        last = np.cumsum(n_new + 1) - 1
        length = self._steps[sentence] - done
        before = np.cumsum(length) - length
        first = last - n_new
        length[last] = self.unroll - (before[last] - before[first])
        self._sentence, self._done = sentence[last], done[last] + length[last]
        mine = (row >= self._rows.start) & (row < self._rows.stop)
        return self._window(sentence[mine], done[mine], length[mine])

    def _hand_out(self, need: Ids) -> Ids:
        """Take sentences for `need[r]` steps of each row r: heads[r] … heads[r + 1] − 1 of the queue; (n_rows + 1,)."""
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
        """Return steps done … done + length − 1 of each sentence, in both directions."""
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
        """Remove the sentences that were taken, and add epochs until the queue is long enough for a window."""
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
        """Return the epoch, how many of its sentences have left the queue, and the sentences to read again first."""
        again = self._order[self._head : self._n_again].tolist()
        epoch, taken = divmod(self._first + max(self._head - self._n_again, 0), self.corpus.n_sentences)
        return epoch, taken, again


class SentenceWindow(NamedTuple):
    """The sentences of one step."""

    number: tuple[int, int]  # the epoch, and the number of the window in it
    ids: Ids  # (n_sentences, longest): the word-type ids of <S> w_1 … w_n </S>, then more </S>
    lengths: Ids  # (n_sentences,): n + 2


@dataclass(frozen=True)
class _SentencePosition(Config):
    """`SentenceStream.position` as plain data."""

    seed: int
    n_sentences: int
    epoch: Annotated[int, Range(min=0, max=10**9)]
    window: NonNegativeInt


class SentenceStream:
    """Windows of whole sentences of similar length, together about batch_size · unroll tokens over all ranks.

    Every epoch shuffles the sentences, sorts them by length, cuts them into windows, and shuffles the windows. All
    ranks get the same windows, and share them later. A sentence of more tokens than a window has is cut to that number.

    Args:
        corpus: The prepared text.
        batch_size: The rows of this rank; together with `unroll` it determines the number of tokens of a window.
        unroll: See `batch_size`.
        seed: Determines the order of the sentences.
        rank: The rank of this process; it makes no difference.
        n_ranks: The number of processes.

    >>> from torchelmo.lm.corpus import write_corpus
    >>> import tempfile
    >>> corpus = write_corpus(tempfile.mkdtemp() + "/data", [["a", "bow"]])
    >>> next(iter(SentenceStream(corpus, batch_size=1, unroll=9, seed=1))).ids.tolist()  # <S> a bow </S>
    [[0, 3, 4, 1]]
    """

    def __init__(
        self, corpus: Corpus, *, batch_size: int, unroll: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        self.corpus, self.batch_size, self.seed = corpus, batch_size, seed
        self.tokens_per_window = max(3, batch_size * n_ranks * unroll)
        self._lengths = np.minimum(np.diff(corpus.offsets) + 2, self.tokens_per_window)
        self._start(epoch=0, window=0)

    @property
    def windows_per_epoch(self) -> int:
        """The number of windows after which the text has been read once."""
        return len(self._windows)

    @property
    def epoch(self) -> float:
        """How many times the text has been read; 1.5 is half-way through the second time."""
        return self._epoch + self._next_window / self.windows_per_epoch

    @property
    def position(self) -> dict[str, Any]:
        """The position of all ranks in the stream, as plain data. It is the same on every rank."""
        return {
            "seed": self.seed,
            "n_sentences": self.corpus.n_sentences,
            "epoch": self._epoch,
            "window": self._next_window,
        }

    def seek(self, position: dict[str, Any]) -> None:
        """Continue exactly at a position.

        Raises:
            InputError: The position belongs to another text or seed, or is damaged.
        """
        found = build_config(_SentencePosition, position, where="position of the stream")
        for name, own in (("seed", self.seed), ("n_sentences", self.corpus.n_sentences)):
            if getattr(found, name) != own:
                raise _other_run(name, own, getattr(found, name))
        if found.window > self.windows_per_epoch:
            raise InputError(
                f"Stream: expected a position in {self.windows_per_epoch} windows, got window {found.window}."
            )
        self._start(found.epoch, found.window)

    def __iter__(self) -> Iterator[SentenceWindow]:
        while True:
            if self._next_window >= self.windows_per_epoch:
                self._start(self._epoch + 1, 0)
            number = self._epoch, self._next_window
            self._next_window += 1
            yield self._read(number)

    def _read(self, number: tuple[int, int]) -> SentenceWindow:
        sentences = self._windows[number[1]]
        lengths = self._lengths[sentences]
        step = np.arange(lengths.max())
        places = self.corpus.offsets[sentences][:, None] + step - 1
        ids = self.corpus.tokens[np.clip(places, 0, self.corpus.n_tokens - 1)].astype(np.int64)
        ids[:, 0] = BEGIN_ID
        ids[step >= lengths[:, None] - 1] = END_ID
        return SentenceWindow(number, ids, lengths)

    def _start(self, epoch: int, window: int) -> None:
        """Form the windows of an epoch, and continue with number `window`."""
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(self.corpus.n_sentences)
        order = order[np.argsort(self._lengths[order], kind="stable")]
        last = (np.cumsum(self._lengths[order]) - 1) // self.tokens_per_window  # the window in which a sentence ends
        windows = np.split(order, np.flatnonzero(np.diff(last)) + 1)
        self._windows = [windows[i] for i in random.permutation(len(windows))]
        self._epoch, self._next_window = epoch, window


STREAMS: dict[str, type[Stream] | type[SentenceStream]] = {"bilm": Stream, "masked": SentenceStream}  # by objective


def _other_run(name: str, expected: int, found: int) -> InputError:
    return InputError(
        f"Stream: expected a position with {name} {expected}, got one with {found}. "
        "Resume with the data and seed of the run."
    )
