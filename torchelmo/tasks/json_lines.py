"""JSON lines: one object on each."""

import json
from pathlib import Path
from typing import Any

from torchelmo.tasks.columns import malformed


def parse_object(line: str, path: str | Path, number: int) -> dict[str, Any]:
    """The object on line `number` of a file, or an error that names the place."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise malformed(path, number, "a JSON object", f"something else ({error}): {line[:40]!r}") from error
    if not isinstance(content, dict):
        raise malformed(path, number, "a JSON object", repr(line[:40]))
    return content
