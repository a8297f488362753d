"""Questions about passages: from SQuAD 1.1 JSON, from JSON lines, or from a text and questions about it."""

import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchelmo.config import PositiveInt
from torchelmo.errors import InputError, short_repr, shorten
from torchelmo.files import read_lines
from torchelmo.tasks.task import Source
from torchelmo.text.places import TextData, settings_of
from torchelmo.text.reading import parse_object
from torchelmo.text.tokenize import align, tokenizer_for

logger = logging.getLogger(__name__)
T = TypeVar("T")
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}
_FORMAT = (
    "SQuAD 1.1 JSON, or JSON lines such as "
    '{"context": "Ann lives in Rome.", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 13}]}.'
)


@dataclass(frozen=True)
class QuestionData(TextData):
    """[data]: the tokenization, and the questions to train on."""

    max_context: PositiveInt = 400  # tokens; questions about longer passages are not trained on
    max_answer: PositiveInt = 17  # tokens; questions with longer answers are not trained on


class Window(NamedTuple):
    """The part of a passage that the model reads at once."""

    start: int  # index of its first token in the passage
    tokens: list[str]


class Passage(NamedTuple):
    """A text with its tokens."""

    text: str
    offsets: list[tuple[int, int]]  # of every token: text[start:end] is the token
    sentences: list[int]  # the first token of each sentence
    windows: list[Window]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last of the fewest tokens that cover text[start:end]; None if there is no token.

        >>> make_passage("It's Jan.", ["It", "'s", "Jan", "."]).span(5, 8)
        (2, 2)
        """
        first = bisect_right(self.offsets, start, key=lambda token: token[1])
        last = bisect_left(self.offsets, end, key=lambda token: token[0]) - 1
        return (first, last) if first <= last and start < end else None

    def marked(self, start: int, end: int) -> str:
        """Return the sentences around text[start:end] on one line, with brackets around those characters."""
        covered = self.span(start, end) or (0, 0)
        first = self.sentences[bisect_right(self.sentences, covered[0]) - 1]
        next_sentence = bisect_right(self.sentences, covered[1])
        last = self.sentences[next_sentence] - 1 if next_sentence < len(self.sentences) else len(self.offsets) - 1
        left, right = self.offsets[first][0], self.offsets[last][1]
        return " ".join(f"{self.text[left:start]}[{self.text[start:end]}]{self.text[end:right]}".split())


class Answer(NamedTuple):
    """A reference answer."""

    text: str
    first: int  # tokens of the passage: the fewest that cover the answer
    last: int


class Question(NamedTuple):
    """A question about a passage."""

    id: str
    text: str
    tokens: list[str]
    passage: Passage
    answers: list[Answer] | None  # None if they are to be predicted


def read_squad(path: Path, options: QuestionData) -> list[Question]:
    """Read every question of a file with its answers.

    Raises:
        InputError: The file is malformed, or a question has no answer.
    """
    records = _read_records(path)
    unanswered = next((record for record in records if not record.answers), None)
    if unanswered is not None:
        raise InputError(
            f"{unanswered.where}: expected one or more answers, found none. Every question of SQuAD 1.1 has an answer: "
            "remove questions without one."
        )
    return _questions(records, options, window=None)


def read_questions(source: Source, options: QuestionData) -> list[Question]:
    """Read questions without answers: those of `source`, asked about each of its texts, or those of a JSON file."""
    if not source.questions:
        records = _read_records(source.path, " To ask about a plain text, use `questions`.")
    else:
        contexts = ["\n".join(read_lines(source.path))] if source.texts is None else source.texts
        for context in contexts:
            if not isinstance(context, str):
                raise InputError(f"Expected passages as strings, got {short_repr(context)}.")
        asked = [(question, context) for context in contexts for question in source.questions]
        records = [_Record(source.path, str(number), *pair, None) for number, pair in enumerate(asked)]
    return _questions(records, settings_of(source, options), window=options.max_context)


def filter_trainable(questions: Sequence[Question], options: QuestionData) -> list[Question]:
    """Return the questions whose passage and at least one answer are within the limits; log how many are dropped."""
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


def make_passage(
    text: str, tokens: Sequence[str], *, sentences: Sequence[int] = (0,), window: int | None = None
) -> Passage:
    """Build a passage.

    Args:
        text: The text.
        tokens: Its tokens.
        sentences: The first token of each sentence.
        window: The longest window, in tokens. Windows of a longer text overlap by half. None for one window.
    """
    starts = _window_starts(len(tokens), window)
    windows = [Window(start, list(tokens[start : None if window is None else start + window])) for start in starts]
    [found] = align([tokens], text)
    return Passage(text, [(token.start, token.end) for token in found], list(sentences), windows)


def _window_starts(n_tokens: int, window: int | None) -> range:
    """Return the first tokens of windows that cover all tokens; no window lies within another."""
    if window is None or n_tokens <= window:
        return range(1)
    step = max(window // 2, 1)
    return range(0, n_tokens - window + step, step)


class _Record(NamedTuple):
    """A question as in its file."""

    where: str  # for messages
    id: str
    question: str
    context: str
    answers: list[tuple[str, int]] | None  # text, and the character of the context at which it starts


def _questions(records: Sequence[_Record], options: QuestionData, *, window: int | None) -> list[Question]:
    """Tokenize questions and passages. Questions about the same text share one passage."""
    contexts = list(dict.fromkeys(record.context for record in records))
    passages = {}
    for context, parts in zip(contexts, split_texts(contexts, options)):
        sentences = [0, *accumulate(len(part) for part in parts[:-1])]
        tokens = [token for part in parts for token in part]
        passages[context] = make_passage(context, tokens, sentences=sentences, window=window)
    result = []
    for record, parts in zip(records, split_texts([record.question for record in records], options)):
        passage = passages[record.context]
        for name, tokens_of in (("question", parts), ("context", passage.offsets)):
            if not tokens_of:
                raise InputError(f"{record.where}: expected a {name}, found no words in it. Remove the question.")
        tokens = [token for part in parts for token in part]
        result.append(Question(record.id, record.question, tokens, passage, _answers(record, passage)))
    return result


def split_texts(texts: Sequence[str], options: TextData) -> list[list[list[str]]]:
    """Return the sentences of every text. One call for many texts is much faster than one for each."""
    if options.pretokenized:
        return [[line.split() for line in text.split("\n") if line.strip()] for text in texts]
    types, ids, lengths, text_of = tokenizer_for(options.lang).encode(texts)
    result: list[list[list[str]]] = [[] for _ in texts]
    tokens = [types[i] for i in ids.tolist()]
    start = 0
    for length, number in zip(lengths.tolist(), text_of.tolist()):
        result[number].append(tokens[start : start + length])
        start += length
    return result


def _answers(record: _Record, passage: Passage) -> list[Answer] | None:
    if record.answers is None:
        return None
    answers = []
    for text, start in record.answers:
        found = passage.text[start : start + len(text)] if start >= 0 else ""
        covered = passage.span(start, start + len(text))
        if found != text or covered is None:
            raise InputError(
                f"{record.where}: expected the answer {short_repr(text)} at character {short_repr(start)} of the "
                f"context, found {short_repr(found)}. Correct answer_start, which counts characters (not bytes) from 0."
            )
        answers.append(Answer(text, *covered))
    return answers


def _read_records(path: str | Path, advice: str = "") -> list[_Record]:
    """Read SQuAD JSON, or lines such as {"context": "…", "question": "…"} with optional "id" and "answers"."""
    text = "\n".join(read_lines(path))
    content, error = _parse_json(text)
    if error is None:
        return list(_squad_records(content, str(path)))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and isinstance(_parse_json(lines[0][1])[0], dict):
        return [_line_record(parse_object(line, path, n, _FORMAT), n, f"{path}: line {n}") for n, line in lines]
    raise InputError(
        f"{path}: expected JSON, found {shorten(str(error))}. Expected format: {_FORMAT}{advice}"
    ) from error


def _parse_json(text: str) -> tuple[Any, Exception | None]:
    try:
        return json.loads(text), None
    except (ValueError, RecursionError) as error:  # ValueError also for numbers of more than 4,300 digits
        return None, error


def _squad_records(content: Any, where: str) -> Iterator[_Record]:
    if isinstance(content, dict) and "question" in content:  # JSON lines with a single line
        yield _line_record(content, 1, where)
        return
    for i, article in enumerate(_get(content, "data", list, where), 1):
        title = shorten(str(article.get("title", ""))) if isinstance(article, dict) else ""
        in_article = f"{where}: article {i}" + (f" ({title})" if title else "")
        for j, paragraph in enumerate(_get(article, "paragraphs", list, in_article), 1):
            in_paragraph = f"{in_article}, paragraph {j}"
            context = _get(paragraph, "context", str, in_paragraph)
            for k, question in enumerate(_get(paragraph, "qas", list, in_paragraph), 1):
                id_ = str(question.get("id", k)) if isinstance(question, dict) else str(k)
                yield _record(question, context, id_, f"{in_paragraph}, question {shorten(id_)}")


def _line_record(content: Any, number: int, where: str) -> _Record:
    context = _get(content, "context", str, where)
    return _record(content, context, str(content.get("id", number - 1)), where)


def _record(content: Any, context: str, id_: str, where: str) -> _Record:
    question = _get(content, "question", str, where)
    if "answers" not in content:
        return _Record(where, id_, question, context, None)
    answers = _get(content, "answers", list, where)
    pairs = [(_get(answer, "text", str, where), _get(answer, "answer_start", int, where)) for answer in answers]
    return _Record(where, id_, question, context, pairs)


def _get(content: Any, key: str, kind: type[T], where: str) -> T:
    """Return content[key], which must be of type `kind`."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected an object with the key {key!r}, found {short_repr(content)}.")
    if key not in content:
        found = shorten(", ".join(map(repr, content))) or "none"
        raise InputError(f"{where}: expected the key {key!r}, found {found}. Expected format: {_FORMAT}")
    value = content[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{where}: {key}: expected {_TYPE_NAMES[kind]}, found {short_repr(value)}.")
    return value
