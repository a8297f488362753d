"""Questions about passages, from SQuAD 1.1 JSON, from JSON lines, or from a text and questions about it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torchelmo.errors import ConfigError, InputError
from torchelmo.files import read_lines
from torchelmo.tasks.qa.passage import Passage, make_passage, tokenize
from torchelmo.tasks.qa.squad import Record, read_records
from torchelmo.tasks.task import Source
from torchelmo.text.tokenize import Tokenizer

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
