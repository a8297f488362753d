"""The files: SQuAD 1.1 JSON, and JSON lines with a question each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchelmo.errors import InputError
from torchelmo.files import read_lines
from torchelmo.tasks.json_lines import parse_object

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
