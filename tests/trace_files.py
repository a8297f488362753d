"""Record the files of the package in which a function ran.

`python tests/trace_files.py FOUND.json embed` traces `Elmo.embed` of one sentence with the model loaded;
`python tests/trace_files.py FOUND.json ARGUMENT…` traces `torchelmo ARGUMENT…`.
"""

import contextlib
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


@contextlib.contextmanager
def tracing(package: Path) -> Iterator[set[str]]:
    """Collect the paths, relative to `package`, of the files in which a function runs, in any thread."""
    found: set[str] = set()
    seen: dict[int, CodeType] = {}  # by id: code objects of equal functions in two files are equal
    prefix = f"{package}/"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or id(code) in seen:
            return
        seen[id(code)] = code
        # Modules and class bodies run when they are imported; they are no functions and lack this flag.
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(prefix):
            found.add(code.co_filename.removeprefix(prefix))

    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)  # type: ignore[arg-type]


def prepare_embed() -> Callable[[], object]:
    """Load the model in the package; return the call to trace."""
    import torchelmo

    elmo = torchelmo.Elmo(torchelmo.load())
    return lambda: elmo.embed(["He took a bow."])


def prepare_command(arguments: list[str]) -> Callable[[], object]:
    """Import the command line; return the call to trace."""
    import torch  # noqa: F401 — before the trace: every call in it costs time

    from torchelmo.cli import main

    return lambda: main(arguments)


def trace(arguments: list[str]) -> tuple[set[str], int]:
    """Return the files and the exit code of one walk."""
    import torchelmo

    call = prepare_embed() if arguments == ["embed"] else prepare_command(arguments)
    code = 0
    with tracing(Path(torchelmo.__file__).parent) as found:
        try:
            call()
        except SystemExit as end:
            code = int(end.code or 0)
    return found, code


if __name__ == "__main__":
    out, *rest = sys.argv[1:]
    files, code = trace(rest)
    Path(out).write_text(json.dumps(sorted(files)), encoding="utf-8")
    sys.exit(code)
