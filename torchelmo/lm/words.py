"""Surprisal of the words of a table, as reading studies need it: one result for each word as it is given.

A word of a study is what the reader saw: "owners." with its full stop. The model's tokens are smaller, so the bits of
the tokens of a word are added: −log₂ p(word) = Σ −log₂ p(token).
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.files import read_lines, require_file
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.predict import Scores, State, scores
from torchelmo.text.reading import malformed
from torchelmo.text.tables import TableReader, column_names
from torchelmo.text.tokenize import align, tokenizer_for

SENTENCES_PER_BLOCK = 1024  # that are scored together: a run can be resumed between two blocks
_BLOCK = 2048  # words that are split into sentences at once
_Owned: TypeAlias = tuple[list[str], list[int]]  # the tokens of a sentence, and the number of the word of each


class Word(NamedTuple):
    """A word as the reader saw it."""

    text: str
    group: str = ""  # the story or item: when it changes, the model starts from zero state
    sentence: str | None = None  # when it changes, a sentence ends; None: sentences are found by rules


class WordScore(NamedTuple):
    """The prediction of a word. Dicts have one entry for each direction of the model, and are empty without tokens."""

    word: Word
    tokens: list[str]
    in_vocabulary: bool  # whether the vocabulary has all tokens
    bits: dict[str, float]  # −log₂ p, added over the tokens
    ranks: dict[str, int]  # of the token that the direction reads first
    entropies: dict[str, float]  # in bits, of the distribution before the direction reads the word


class TableState(NamedTuple):
    """How far `surprisal_table` is: plain data, from which it can continue."""

    n_rows: int
    before: list[list[Any]]  # values of the words before, the last one first, for the columns of spill-over
    group: str | None


def word_surprisal(
    bilm: BiLM,
    words: Iterable[Word],
    *,
    state: State = "reset",
    lang: str | None = "en",
    batch_tokens: int = 2048,
    rank: bool = False,
    entropy: bool = False,
) -> Iterator[WordScore]:
    """Yield the surprisal of every word, in order. Words are read as they are needed.

    Args:
        bilm: A model with a softmax.
        words: The words of the text. The words of a group are joined by spaces and then tokenized.
        state: "reset" starts every sentence from zero state. "carry" starts every group from zero state, and every
            other sentence from the state after the one before it.
        lang: The language whose rules find the tokens and sentences. None: words are tokens, separated by spaces if
            there are several in a word, and a group is a sentence if the words name no sentences.
        batch_tokens: About how many tokens to process at once.
        rank: Compute the ranks.
        entropy: Compute the entropies.

    Raises:
        InputError: The model has no softmax.

    Example:
        >>> import torchelmo
        >>> from torchelmo.lm.words import Word, word_surprisal
        >>> found = list(word_surprisal(torchelmo.load(), [Word("The"), Word("owners'"), Word("garden.")]))
        >>> [one.tokens for one in found]
        [['The'], ['owners', "'"], ['garden', '.']]
    """
    found = _scored_words(bilm, words, 0, state, lang, batch_tokens, rank, entropy)
    return (one for one in found if one is not None)


def _scored_words(
    bilm: BiLM, words: Iterable[Word], first: int, state: State, lang: str | None, batch_tokens: int, *extra: bool
) -> Iterator[WordScore | None]:
    """Yield the surprisal of the words from number `first` on, and None after each block of sentences.

    Blocks are independent of each other and the same in every run. So a run with the number of words before a None as
    `first` gives the same numbers for the rest, bit for bit.
    """
    pending: deque[_Pending] = deque()
    n_read = n_done = 0

    def read() -> Iterator[tuple[int, Word]]:
        nonlocal n_read
        for word in words:
            pending.append(_Pending(word))
            yield n_read, word
            n_read += 1

    def take(n: int) -> Iterator[WordScore]:
        """Yield the words before number `n`: no later sentence has tokens of them."""
        nonlocal n_done
        while n_done < n:
            word = pending.popleft()
            n_done += 1
            if n_done > first:
                yield word.result()

    groups = (group for _, group in groupby(read(), key=lambda item: item[1].group))
    parts = (_split_group(group, lang) for group in groups)
    blocks: Iterable[Iterable[_Owned]] = parts if state == "carry" else _blocks(chain.from_iterable(parts))
    rank, entropy = extra
    for block in blocks:
        sentences = iter(block)
        if (head := next(sentences, None)) is None:
            continue
        sentences = chain([head], sentences)
        if head[1][0] < first:  # an earlier run did this block
            yield from take(deque(sentences, maxlen=1)[0][1][-1] + 1)
            continue
        owners: deque[list[int]] = deque()
        tokens = _tokens(sentences, owners)
        for result in scores(bilm, tokens, state=state, batch_tokens=batch_tokens, rank=rank, entropy=entropy):
            numbers = owners.popleft()
            yield from take(numbers[0])
            for i, number in enumerate(numbers):
                pending[number - n_done].add(result, i)
        yield from take(numbers[-1] + 1)
        yield None
    yield from take(n_read)


def _blocks(sentences: Iterable[_Owned]) -> Iterator[list[_Owned]]:
    """Yield lists of sentences. No word has tokens in two lists."""
    block: list[_Owned] = []
    for sentence in sentences:
        if len(block) >= SENTENCES_PER_BLOCK and sentence[1][0] > block[-1][1][-1]:
            yield block
            block = []
        block.append(sentence)
    if block:
        yield block


def _tokens(sentences: Iterable[_Owned], owners: deque[list[int]]) -> Iterator[list[str]]:
    for tokens, numbers in sentences:
        owners.append(numbers)
        yield tokens


class _Pending:
    """A word whose tokens are not all scored yet."""

    def __init__(self, word: Word) -> None:
        self.word = word
        self.tokens: list[str] = []
        self.known = True
        self.bits: dict[str, float] = {}
        self.ranks: dict[str, int] = {}
        self.entropies: dict[str, float] = {}

    def add(self, found: Scores, i: int) -> None:
        """Add token `i` of a sentence."""
        self.tokens.append(found.tokens[i])
        self.known = self.known and bool(found.known[i])
        for direction, values, row in (("forward", found.forward, i), ("backward", found.backward, i + 1)):
            if values is None:
                continue
            self.bits[direction] = self.bits.get(direction, 0.0) - float(values[row]) / math.log(2)
            # The forward direction reads the first token of a word first, the backward direction the last one.
            if direction == "backward" or len(self.tokens) == 1:
                if found.ranks:
                    self.ranks[direction] = int(found.ranks[direction][row])
                if found.entropies:
                    self.entropies[direction] = float(found.entropies[direction][row]) / math.log(2)

    def result(self) -> WordScore:
        return WordScore(self.word, self.tokens, self.known, self.bits, self.ranks, self.entropies)


class Frequencies:
    """How often words occur, from text that `torchelmo prepare` wrote or from a list.

    Args:
        path: A folder that `torchelmo prepare` wrote, or a file of lines `word TAB count`.

    Raises:
        InputError: A line of the list is not a word and its count.
    """

    def __init__(self, path: str | Path) -> None:
        self._counts: dict[str, int] = {}
        if Path(path).is_dir():
            corpus = Corpus(path)
            self._counts = dict(zip(corpus.types[3:], corpus.counts[3:].tolist()))  # without the marks
        else:
            for number, line in enumerate(read_lines(require_file(path, "a list of words and their counts")), 1):
                word, _, count = line.rstrip().rpartition("\t")
                if not word or not count.isdecimal():
                    raise malformed(path, number, "a word, a tab and its count", short_repr(line))
                self._counts[word] = self._counts.get(word, 0) + int(count)
        self._total = sum(self._counts.values()) + len(self._counts) + 1

    def log2(self, tokens: Sequence[str]) -> float | None:
        """Return log₂ of the relative frequency of a word, given its tokens; None without tokens.

        The values of the tokens are added, as surprisals are; tokens without a letter or digit are left out unless the
        word has no others. Every count is one higher than counted, so that new words have a frequency, too.
        """
        chosen = [token for token in tokens if any(map(str.isalnum, token))] or tokens
        if not chosen:
            return None
        counts = (self._counts.get(token) or self._counts.get(token.lower(), 0) for token in chosen)
        return sum(math.log2((count + 1) / self._total) for count in counts)


def surprisal_table(
    bilm: BiLM,
    path: str | Path,
    word: str,
    *,
    group: str | None = None,
    sentence: str | None = None,
    state: State = "reset",
    lang: str | None = "en",
    directions: Sequence[str] | None = None,
    rank: bool = False,
    entropy: bool = False,
    frequencies: Frequencies | None = None,
    spillover: int = 0,
    batch_tokens: int = 2048,
    progress: Callable[[int], object] | None = None,
    resume_from: TableState | None = None,
    checkpoint: Callable[[TableState], object] | None = None,
) -> tuple[list[str], Iterator[list[Any]]]:
    """Add surprisals to a table that has one word in each row.

    Args:
        bilm: A model with a softmax.
        path: A CSV or TSV file whose first line names the columns; also .gz, .bz2 or .xz.
        word: The column with the words.
        group: The column that names the story or item. Contexts and spill-over never cross its borders.
        sentence: The column that names the sentence. Default: the rules of the language find sentences.
        state: As for `word_surprisal`.
        lang: As for `word_surprisal`.
        directions: The directions to add. Default: those of the model.
        rank: Add the rank of the first token that each direction reads.
        entropy: Add the entropy in bits, before each direction reads the word.
        frequencies: Add the column `log_frequency`.
        spillover: Add the values of this many words before each word, in columns such as `forward_1`.
        batch_tokens: About how many tokens to process at once.
        progress: Called with the number of rows that were just finished.
        resume_from: Yield only the rows after this state, which `checkpoint` got in an interrupted run.
        checkpoint: Called from time to time, when the caller has taken all rows before the given state. With
            `state="carry"`, this happens at the end of a group.

    Returns:
        The columns, those of the file first, and the rows, one for each row of the file. Missing values are None.

    Raises:
        InputError: The file has no such column, or one with the name of an added column.
        ConfigError: The model does not have a direction.
    """
    table = TableReader(path)
    at = {name: table.index(name, option) for option, name in _chosen(words=word, group=group, sentence=sentence)}
    chosen = tuple(directions or bilm.config.directions)
    for direction in chosen:
        if direction not in bilm.config.directions:
            raise ConfigError(f"direction: expected one that the model has, got {direction!r}.")
    parts = ["", *(["rank"] if rank else []), *(["entropy"] if entropy else [])]
    measured = [f"{direction}_{part}".rstrip("_") for part in parts for direction in chosen]
    values = [*measured, "length", *(["log_frequency"] if frequencies else [])]
    lagged = [f"{name}_{lag}" for lag in range(1, spillover + 1) for name in values]
    columns = column_names(table.columns, [*values, "tokens", "in_vocabulary", *lagged], table.name)

    def rows() -> Iterator[list[Any]]:
        kept: deque[list[str]] = deque()
        n_rows, values_before, last_group = resume_from or TableState(0, [], None)

        def words() -> Iterator[Word]:
            for number, (_, row) in enumerate(table):
                if number >= first:
                    kept.append(row)
                yield Word(
                    row[at[word]],
                    "" if group is None else row[at[group]],
                    None if sentence is None else row[at[sentence]],
                )

        first = n_rows
        before: deque[list[Any]] = deque(values_before, maxlen=spillover)
        for one in _scored_words(bilm, words(), first, state, lang, batch_tokens, rank, entropy):
            if one is None:
                if checkpoint is not None:
                    checkpoint(TableState(n_rows, list(before), last_group))
                continue
            n_rows += 1
            if one.word.group != last_group:
                before.clear()
                last_group = one.word.group
            by_part: dict[str, Mapping[str, float]] = {"": one.bits, "rank": one.ranks, "entropy": one.entropies}
            own: list[Any] = [by_part[part].get(direction) for part in parts for direction in chosen]
            own = [round(x, 4) if isinstance(x, float) else x for x in own]
            own.append(len(one.word.text))
            if frequencies:
                own.append(None if (f := frequencies.log2(one.tokens)) is None else round(f, 4))
            known = int(one.in_vocabulary) if one.tokens else None
            lags = [*before, *[[None] * len(values)] * (spillover - len(before))]
            yield [*kept.popleft(), *own, len(one.tokens), known, *chain.from_iterable(lags)]
            before.appendleft(own)
            if progress is not None:
                progress(1)
        if not n_rows:
            raise InputError(f"{table.name}: expected rows with words, found none.")

    return columns, rows()


def _chosen(**columns: str | None) -> Iterator[tuple[str, str]]:
    return ((f"--{option}", name) for option, name in columns.items() if name is not None)


def _split_group(words: Iterable[tuple[int, Word]], lang: str | None) -> Iterator[_Owned]:
    """Yield the sentences of a group that have tokens."""
    if lang is None:
        for _, some in groupby(words, key=lambda item: item[1].sentence):
            pairs = [(token, number) for number, word in some for token in word.text.split()]
            if pairs:
                yield [token for token, _ in pairs], [number for _, number in pairs]
        return
    for name, some in groupby(words, key=lambda item: item[1].sentence):
        pieces: list[tuple[int, str]] = []
        limit = _BLOCK
        for number, word in some:
            pieces.append((number, word.text))
            if name is None and len(pieces) >= limit:  # the last sentence may not be complete
                complete, pieces = _split_pieces(pieces, lang, keep_last=True)
                yield from complete
                limit = len(pieces) + _BLOCK
        found, _ = _split_pieces(pieces, lang, keep_last=False)
        if name is None:
            yield from found
        elif found:
            yield [token for tokens, _ in found for token in tokens], [n for _, numbers in found for n in numbers]


def _split_pieces(
    pieces: list[tuple[int, str]], lang: str, *, keep_last: bool
) -> tuple[list[_Owned], list[tuple[int, str]]]:
    """Return the sentences of consecutive words; `keep_last` returns the last one as pieces that are not split yet."""
    text = " ".join(piece for _, piece in pieces)
    starts, start = [], 0
    for _, piece in pieces:
        starts.append(start)
        start += len(piece) + 1
    sentences = align(tokenizer_for(lang).sentences(text), text)
    rest: list[tuple[int, str]] = []
    if keep_last and sentences:
        begin = sentences.pop()[0].start
        first = bisect_right(starts, begin) - 1
        number, piece = pieces[first]
        rest = [(number, piece[begin - starts[first] :]), *pieces[first + 1 :]]
    owned = [
        ([token.text for token in sentence], [pieces[bisect_right(starts, token.start) - 1][0] for token in sentence])
        for sentence in sentences
    ]
    return owned, rest
