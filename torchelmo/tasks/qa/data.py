"""Questions about passages, from SQuAD 1.1 JSON, from JSON lines, or from a text and questions about it."""

import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchelmo.errors import ConfigError, InputError
from torchelmo.files import read_lines
from torchelmo.tasks.task import Source
from torchelmo.text.reading import parse_object
from torchelmo.text.tokenize import Tokenizer


class Window(NamedTuple):
    """What the model reads at once."""

    start: int  # the passage's token that it begins with
    sentences: list[list[str]]  # one, or as many as go through the biLM each by itself

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.sentences))


class Passage(NamedTuple):
    text: str
    offsets: list[tuple[int, int]]  # of every token: text[start:end] is the token
    sentences: list[int]  # the token that each sentence begins with
    windows: list[Window]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """The fewest tokens, first and last, that cover text[start:end]; None where no token stands.

        >>> make_passage("It's Jan.", ["It", "'s", "Jan", "."]).span(5, 8)
        (2, 2)
        """
        first = bisect_right(self.offsets, start, key=lambda token: token[1])
        last = bisect_left(self.offsets, end, key=lambda token: token[0]) - 1
        return (first, last) if first <= last and start < end else None

    def marked(self, start: int, end: int) -> str:
        """The sentence (or sentences) around text[start:end] on one line, with brackets around those characters."""
        covered = self.span(start, end) or (0, 0)
        begin = self.sentences[bisect_right(self.sentences, covered[0]) - 1]
        after = bisect_right(self.sentences, covered[1])
        stop = self.sentences[after] - 1 if after < len(self.sentences) else len(self.offsets) - 1
        left, right = self.offsets[begin][0], self.offsets[stop][1]
        return " ".join(f"{self.text[left:start]}[{self.text[start:end]}]{self.text[end:right]}".split())


def make_passage(
    text: str,
    tokens: Sequence[str],
    *,
    sentences: Sequence[int] = (0,),
    split_sentences: bool = False,
    window: int | None = None,
) -> Passage:
    """`sentences` are the tokens that sentences begin with. A longer text is read by windows of `window` tokens,
    each half a window on from the one before; without `window` it is read as a whole."""
    starts = _window_starts(len(tokens), window)
    windows = []
    for start in starts:
        end = len(tokens) if window is None else min(start + window, len(tokens))
        cuts = [start, *(cut for cut in sentences if start < cut < end)] if split_sentences else [start]
        windows.append(Window(start, [list(tokens[i:j]) for i, j in zip(cuts, [*cuts[1:], end])]))
    return Passage(text, locate(text, tokens), list(sentences), windows)


def locate(text: str, tokens: Iterable[str]) -> list[tuple[int, int]]:
    """Where each token stands: all of `text` but white space, in order.

    >>> locate("I  can't", ["I", "ca", "n't"])
    [(0, 1), (3, 5), (5, 8)]
    """
    offsets, end = [], 0
    for token in tokens:
        start = text.find(token, end)
        if start < 0 or text[end:start].strip():
            raise InputError(
                f"Expected the token {token!r} after character {end} of its text, found {text[end : end + 40]!r}. "
                "Tokens must be pieces of the text as it stands, in its order."
            )
        end = start + len(token)
        offsets.append((start, end))
    if text[end:].strip():
        raise InputError(f"Expected tokens for all of a text, found none for its end {text[end : end + 40]!r}.")
    return offsets


def tokenize(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[list[str]]]:
    """For every text its sentences; all at once, as reading them one by one costs much more."""
    types, ids, lengths, text_of = tokenizer.encode(texts)
    result: list[list[list[str]]] = [[] for _ in texts]
    start = 0
    tokens = [types[i] for i in ids.tolist()]
    for length, number in zip(lengths.tolist(), text_of.tolist()):
        result[number].append(tokens[start : start + length])
        start += length
    return result


def _window_starts(n_tokens: int, window: int | None) -> range:
    """The last window is not longer than the others, and no window lies within another."""
    if window is None or n_tokens <= window:
        return range(1)
    step = max(window // 2, 1)
    return range(0, n_tokens - window + step, step)


T = TypeVar("T")
_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


class Record(NamedTuple):
    """A question as its file has it."""

    where: str  # for messages
    id: str
    question: str
    context: str
    answers: list[tuple[str, int]] | None  # text, and the character of the context where it starts


def read_records(path: str | Path) -> list[Record]:
    """SQuAD JSON, or lines such as {"context": "…", "question": "…"} (with "id" and "answers" where wanted)."""
    text = "\n".join(read_lines(path))
    try:
        return list(_squad_records(json.loads(text), str(path)))
    except (json.JSONDecodeError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) > 1 and _is_json(lines[0][1]):
            return [_line_record(parse_object(line, path, n), n, f"{path}: line {n}") for n, line in lines]
        raise InputError(
            f"{path}: expected JSON, either of SQuAD or an object on every line: {error}. To ask about a plain text, "
            "ask with --question."
        ) from error


def _squad_records(content: Any, where: str) -> Iterator[Record]:
    if isinstance(content, dict) and "question" in content:  # JSON lines, of which there is one
        yield _line_record(content, 1, where)
        return
    for i, article in enumerate(_get(content, "data", list, where), 1):
        title = article.get("title", "") if isinstance(article, dict) else ""
        in_article = f"{where}: article {i}" + (f" ({title})" if title else "")
        for j, paragraph in enumerate(_get(article, "paragraphs", list, in_article), 1):
            in_paragraph = f"{in_article}, paragraph {j}"
            context = _get(paragraph, "context", str, in_paragraph)
            for k, question in enumerate(_get(paragraph, "qas", list, in_paragraph), 1):
                id_ = str(question.get("id", k)) if isinstance(question, dict) else str(k)
                yield _record(question, context, id_, f"{in_paragraph}, question {id_}")


def _line_record(content: Any, number: int, where: str) -> Record:
    context = _get(content, "context", str, where)
    return _record(content, context, str(content.get("id", number - 1)), where)


def _record(content: Any, context: str, id_: str, where: str) -> Record:
    question = _get(content, "question", str, where)
    if "answers" not in content:
        return Record(where, id_, question, context, None)
    answers = _get(content, "answers", list, where)
    pairs = [(_get(answer, "text", str, where), _get(answer, "answer_start", int, where)) for answer in answers]
    return Record(where, id_, question, context, pairs)


def _get(content: Any, key: str, kind: type[T], where: str) -> T:
    """content[key], which should be of `kind`."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected an object with the key {key!r}, found {content!r:.60}.")
    if key not in content:
        raise InputError(f"{where}: expected the key {key!r}, found {', '.join(map(repr, content)) or 'none'}.")
    value = content[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{where}: {key}: expected {_NAMES[kind]}, found {value!r:.60}.")
    return value


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (json.JSONDecodeError, RecursionError):
        return False


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuestionData:
    """[data] of a configuration."""

    max_context: int = 400  # tokens; questions about longer passages are not trained on
    max_answer: int = 17  # tokens; questions with longer answers are not trained on
    split_sentences: bool = False  # each sentence goes through the biLM by itself, not the passage as a whole
    lang: str = "en"  # whose rules split text into tokens

    def __post_init__(self) -> None:
        for name in ("max_context", "max_answer"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1 token, got {getattr(self, name)}.")


class Answer(NamedTuple):
    text: str
    first: int  # tokens of the passage, the fewest that cover the answer
    last: int


class Question(NamedTuple):
    id: str
    text: str
    tokens: list[str]
    passage: Passage
    answers: list[Answer] | None  # None where they are not known


def read_squad(path: Path, options: QuestionData) -> list[Question]:
    """Every question of a file with its answers."""
    records = read_records(path)
    unanswered = next((record for record in records if not record.answers), None)
    if unanswered is not None:
        raise InputError(
            f"{unanswered.where}: expected one or more answers, found none. SQuAD 1.1 has an answer to every "
            "question: leave the others out."
        )
    return _questions(records, lang=options.lang, split_sentences=options.split_sentences, window=None)


def trainable(questions: Sequence[Question], options: QuestionData) -> list[Question]:
    """Those whose passage is short enough and that have an answer that is; one log line counts the others."""
    short = [question for question in questions if len(question.passage.offsets) <= options.max_context]
    kept = []
    for question in short:
        answers = [a for a in question.answers or [] if a.last - a.first < options.max_answer]
        if answers:
            kept.append(question._replace(answers=answers))
    if len(kept) < len(questions):
        logger.info(
            "Not trained on: %d of %d questions, %d with passages of more than %d tokens (data.max_context), %d with "
            "answers of more than %d (data.max_answer).",
            *(len(questions) - len(kept), len(questions), len(questions) - len(short), options.max_context),
            *(len(short) - len(kept), options.max_answer),
        )
    return kept


def read_questions(source: Source, options: QuestionData) -> list[Question]:
    """With `source.questions`, they are asked about the whole file; else the file is JSON that has its own."""
    if not source.questions:
        records = read_records(source.path)
    else:
        text = "\n".join(read_lines(source.path))
        records = [
            Record(source.path, str(number), question, text, None) for number, question in enumerate(source.questions)
        ]
    return _questions(
        records,
        lang=source.lang,
        split_sentences=options.split_sentences,
        window=options.max_context,
    )


def _questions(
    records: Sequence[Record], *, lang: str | None, split_sentences: bool, window: int | None
) -> list[Question]:
    """Tokenised by the rules of `lang`; by white space, each line a sentence, without one. Passages are shared."""
    tokenizer = Tokenizer(lang) if lang is not None else None
    contexts = list(dict.fromkeys(record.context for record in records))
    passages = {}
    for context, parts in zip(contexts, _sentences(contexts, tokenizer)):
        begins = [0]
        for part in parts[:-1]:
            begins.append(begins[-1] + len(part))
        passages[context] = make_passage(
            context,
            [token for part in parts for token in part],
            sentences=begins,
            split_sentences=split_sentences,
            window=window,
        )
    asked = _sentences([record.question for record in records], tokenizer)
    result = []
    for record, question in zip(records, asked):
        passage = passages[record.context]
        for what, is_there in (("question", question), ("context", passage.offsets)):
            if not is_there:
                raise InputError(f"{record.where}: expected a {what}, found no words in it. Leave it out.")
        tokens = [token for sentence in question for token in sentence]
        result.append(Question(record.id, record.question, tokens, passage, _answers(record, passage)))
    return result


def _sentences(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[list[list[str]]]:
    if tokenizer is not None:
        return tokenize(texts, tokenizer)
    return [[line.split() for line in text.split("\n") if line.strip()] for text in texts]


def _answers(record: Record, passage: Passage) -> list[Answer] | None:
    if record.answers is None:
        return None
    answers = []
    for text, start in record.answers:
        found = passage.text[start : start + len(text)] if start >= 0 else ""
        covered = passage.span(start, start + len(text))
        if found != text or covered is None:
            raise InputError(
                f"{record.where}: expected the answer {text!r} at character {start} of the context, found {found!r}. "
                "Correct answer_start, which counts characters (not bytes) from 0."
            )
        answers.append(Answer(text, *covered))
    return answers
