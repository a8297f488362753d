"""Read the code blocks of Markdown pages, and run them.

A comment above a block says how to treat it; readers of the page do not see it:

    <!-- not run: needs hours -->      parse the block, but do not run it
    <!-- file: tiny.toml -->           write the block to this file
    <!-- setup: COMMAND; COMMAND -->   run these commands before the block, which needs files that readers have

A line `expression  # -> value` in a Python block states the value of the expression.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.cli import main

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)
_PROGRAMS = {"cat", "cp", "echo", "gzip", "head", "ls", "mkdir", "printf", "python", "sed", "sort", "tail", "tar", "wc"}


class Block(NamedTuple):
    """A code block of a page."""

    page: Path
    line: int  # of the page, from 1
    language: str  # "python", "bash", "toml", …
    text: str
    note: str  # the comment above it, or ""

    @property
    def is_run(self) -> bool:
        return not self.note.startswith("not run")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"


def all_pages() -> list[Path]:
    """Return the README, the contributor's guide and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced code blocks of a page, without directives such as ```{toctree}."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        if not match["language"].startswith("{"):
            line = text.count("\n", 0, match.start("text")) + 1
            body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
            blocks.append(Block(page, line, match["language"].strip(), body, match["note"] or ""))
    return blocks


def shell_lines(block: Block) -> list[str]:
    """Return the commands of a shell block; a backslash at the end of a line continues it."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def pipeline(line: str) -> tuple[list[list[str]], str | None]:
    """Split a command line into the words of its programs, and the file that its output is redirected to.

    >>> pipeline("torchelmo info | head -3 > info.txt")
    ([['torchelmo', 'info'], ['head', '-3']], 'info.txt')
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    for i, word in enumerate(words):
        if word.startswith("#"):
            words = words[:i]
            break
    target = None
    if ">" in words:
        where = words.index(">")
        words, target = words[:where], words[where + 1]
    programs: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            programs.append([])
        else:
            programs[-1].append(word)
    return programs, target


def run_page(page: Path, monkeypatch: Any) -> int:
    """Run the blocks of a page in order, in the current folder. Return the number of stated values."""
    namespace: dict[str, Any] = {"__name__": "page"}
    stated = 0
    for block in read_blocks(page):
        if block.note.startswith("file: "):
            path = Path(block.note.removeprefix("file: "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif not block.is_run:
            continue
        for line in block.note.removeprefix("setup: ").split("; ") if block.note.startswith("setup: ") else []:
            run_shell(line, f"{block}: {line}", monkeypatch)
        if block.language == "python":
            stated += run_python(block, namespace)
        elif block.language == "bash":
            for line in shell_lines(block):
                run_shell(line, f"{block}: {line}", monkeypatch)
    return stated


def run_python(block: Block, namespace: dict[str, Any]) -> int:
    """Run a block, check the values that it states, and return their number."""
    lines, stated = block.text.splitlines(), 0
    for i, line in enumerate(lines):
        if " # -> " in line:
            expression, value = line.split(" # -> ")
            lines[i] = f"__check(({expression.strip()}), {value.strip()!r}, {line!r})"
            stated += 1
    namespace["__check"] = _check_value
    code = compile("\n" * (block.line - 1) + "\n".join(lines) + "\n", str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, namespace)
    return stated


def run_shell(line: str, where: str, monkeypatch: Any) -> str:
    """Run a command line: torchelmo in this process, other programs in their own. Return its output."""
    programs, target = pipeline(line)
    data = b""
    for words in programs:
        if words[0] == "torchelmo":
            data = _run_torchelmo(words[1:], data, where, monkeypatch)
        else:
            assert words[0] in _PROGRAMS, f"{where}: mark the block '<!-- not run: … -->', or allow {words[0]}"
            words = [sys.executable if words[0] == "python" else words[0], *words[1:]]
            data = subprocess.run(words, input=data, capture_output=True, check=True).stdout
    if target is not None:
        Path(target).write_bytes(data)
    return data.decode("utf-8")


def _run_torchelmo(words: list[str], stdin: bytes, where: str, monkeypatch: Any) -> bytes:
    out, err = io.BytesIO(), io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True))
        try:
            main(words)
        except SystemExit as exit_:
            code = exit_.code
        printed, complaint = out.getvalue(), err.getvalue()
    assert not code, f"{where}: exit code {code}: {complaint.decode('utf-8')}"
    return printed


def _check_value(found: Any, stated: str, line: str) -> None:
    assert str(found) == stated, f"{line.strip()}: found {found}"


def inline_commands(page: Path, program: str) -> Iterator[list[str]]:
    """Yield the words of every call of a program in `inline code`."""
    text = re.sub(_FENCE, "", page.read_text(encoding="utf-8"))
    for code in re.findall(r"`([^`\n]+)`", text):
        if code.startswith(f"{program} "):
            yield shlex.split(code)
