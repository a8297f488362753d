"""The README and the docs are true: their Python runs, their commands and files exist."""

import re
import shlex
from pathlib import Path

import pytest
from command_lines import check_command

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def text_of(page: Path) -> str:
    """With lines that a backslash continues as one."""
    return page.read_text(encoding="utf-8").replace("\\\n", " ")


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks that are marked with a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path, program: str) -> list[list[str]]:
    """The words of every call of a program, in blocks of either kind and in `inline code`, without comments."""
    text = text_of(page)
    lines = [line.strip() for block in blocks(page, "(?:bash)?") for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "python.md"], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    """A line `expression  # -> value` states what the expression gives."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    stated = 0
    for block in blocks(page, "python"):
        for line in block.splitlines():
            if " # -> " not in line:
                continue
            expression, value = line.split(" # -> ")
            block = block.replace(line, f"assert str({expression.strip()}) == {value.strip()!r}, {line!r}")
            stated += 1
        exec(block, namespace)
    assert stated >= 2


@pytest.mark.parametrize("words", [words for page in PAGES for words in commands(page, "torchelmo")], ids=" ".join)
def test_commands_and_their_options_exist(words, monkeypatch, capsys):
    check_command(words, monkeypatch, capsys)


@pytest.mark.parametrize("words", commands(README, "make"), ids=" ".join)
def test_make_targets_exist(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE)


def test_the_tree_shows_what_exists():
    (tree,) = blocks(README, "text")
    parents: list[str] = []
    for line in tree.splitlines():
        path = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [path]
        assert (ROOT / "".join(parents)).exists(), f"the tree names {''.join(parents)}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", text_of(page)):
        assert target.startswith("https://") or (page.parent / target).exists(), target
