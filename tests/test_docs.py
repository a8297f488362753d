"""The README and the documentation are true: code blocks run, commands and options exist, links lead somewhere."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from command_lines import check_call, check_command, check_module
from doc_pages import ROOT, all_pages, inline_commands, pipeline, read_blocks, run_page, shell_lines

PAGES = all_pages()
SHOWN = [*PAGES, ROOT / "torchelmo" / "pretrained" / "english-small" / "README.md"]  # the card is not run
LANGUAGES = {"bash", "bibtex", "json", "python", "r", "text", "toml"}
TRAINING = re.compile(r"torchelmo (pretrain|fine-tune|task train|task table)")


def executed():
    """Yield the pages with blocks to run, except the notebooks; those that train something are slow."""
    for page in PAGES:
        blocks = [block for block in read_blocks(page) if block.is_run and block.language in ("python", "bash")]
        if blocks and page.parent.name != "notebooks":
            marks = [pytest.mark.slow] if any(TRAINING.search(block.text) for block in blocks) else []
            yield pytest.param(page, marks=marks)


def name_of(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else None


@pytest.mark.parametrize("page", list(executed()), ids=name_of)
def test_code_blocks_run_in_order(page, tmp_path, monkeypatch):
    for folder in ("examples", "experiments"):  # as in a copy of the repository
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_every_block_has_a_known_language_and_python_compiles(page):
    for block in read_blocks(page):
        assert block.language in LANGUAGES, f"{block}: expected one of {sorted(LANGUAGES)}, found {block.language!r}"
        if block.language == "python":
            compile(block.text, str(block), "exec")
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_no_code_block_escapes(page):
    """A block with another fence would be neither parsed nor run."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^[ >]*(?:```|~~~).*$", text, flags=re.MULTILINE)
    directives = [fence for fence in fences if re.match(r" *```\{", fence)]
    assert len(fences) == 2 * (len(read_blocks(page)) + len(directives)), fences


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_commands_and_their_options_exist(page, monkeypatch, capsys):
    for block in read_blocks(page):
        if block.language == "bash":
            for line in shell_lines(block):
                for words in pipeline(line)[0]:
                    if words[0] == "torchelmo" or ("torchrun" in words and "torchelmo" in words):
                        check_call(words[words.index("torchelmo") :], str(block))
                    elif words[0] == "python" and is_ours(words):
                        check_module(words, str(block))
    for words in inline_commands(page, "torchelmo"):
        check_command(words, monkeypatch, capsys)
    for words in inline_commands(page, "python"):
        if is_ours(words):
            check_module(words, str(page))


def is_ours(words):
    """Whether a call of Python runs a benchmark or a script of the repository."""
    return re.match(r"-m benchmarks\.|(examples|experiments)/", " ".join(words[1:]))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    calls = [line.split() for block in read_blocks(page) if block.language == "bash" for line in shell_lines(block)]
    calls += list(inline_commands(page, "make"))
    for words in calls:
        if words[0] == "make" and words[1] != "-f":
            assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE), words


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_inside_the_repository_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", text):
        if target.startswith("https://"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{target} does not exist"
        if anchor and path.suffix == ".md":
            assert anchor.removeprefix("#") in anchors(path), f"{target}{anchor}: no such heading"


def test_the_tree_in_contributing_shows_what_exists():
    (tree,) = [block for block in read_blocks(ROOT / "CONTRIBUTING.md") if block.language == "text"]
    parents: list[str] = []
    for line in tree.text.splitlines():
        path = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [path]
        assert (ROOT / "".join(parents)).exists(), f"the tree names {''.join(parents)}, which does not exist"


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}
