"""The README is true: its Python runs, its commands and files exist."""

import re
import shlex
from pathlib import Path

import pytest
from command_lines import check_command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks that are marked with a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """The words of every call of a program, in blocks and in `inline code`, without comments."""
    lines = [line for block in blocks("bash") for line in re.sub(r"\\\n", " ", block).splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    calls = [shlex.split(line, comments=True) for line in lines + inline if line.startswith(f"{program} ")]
    assert calls, f"README.md names no call of {program}"
    return calls


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    assert blocks("python")
    for number, block in enumerate(blocks("python"), 1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)


def test_results_in_comments_are_true(tmp_path, monkeypatch):
    """A line `expression  # -> value` states what the expression gives."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    stated = 0
    for block in blocks("python"):
        for line in block.splitlines():
            if " # -> " not in line:
                continue
            expression, value = line.split(" # -> ")
            block = block.replace(line, f"assert str({expression.strip()}) == {value.strip()!r}, {line!r}")
            stated += 1
        exec(block, namespace)
    assert stated >= 2


@pytest.mark.parametrize("words", commands("torchelmo"), ids=" ".join)
def test_commands_and_their_options_exist(words, monkeypatch, capsys):
    check_command(words, monkeypatch, capsys)


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_make_targets_exist(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE)


def test_the_tree_shows_what_exists():
    (tree,) = blocks("text")
    parents: list[str] = []
    for line in tree.splitlines():
        path = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [path]
        assert (ROOT / "".join(parents)).exists(), f"the tree names {''.join(parents)}, which is not there"


def test_links_inside_the_repository_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
