"""--out, --resume and --overwrite of the commands that print tables: a resumed run writes the same bytes."""

import json
import os
import re
import signal

import pytest
from facts import mentions
from forks import kill_in_call, run_forked
from tiny_lm import tiny_lm

from torchelmo.cli import exit, main, surprisal
from torchelmo.lm import words
from torchelmo.unfinished import GrowingOutput

WORDS = "The bow and the arrow. A rose! The rose and the bow. And bows? And arrows. A bow.And the rose".split()
KEYS = ("sentence_good", "sentence_bad", "UID")
PAIRS = [("the rose.", "the bow.", "a"), ("the bow.", "the rose.", "a"), ("and arrow", "and quiver", "b")] * 2

COMMANDS = {
    "surprisal": ["text.txt", "more.txt", "--rank"],
    "surprisal lm-zoo": ["text.txt", "--format", "lm-zoo"],
    "surprisal json": ["text.txt", "--entropy", "--json"],
    "surprisal carry": ["text.txt", "--state", "carry"],
    "surprisal words": ["words.csv", "other.csv", "--words", "word", "--spillover", "2"],
    "surprisal groups": ["words.csv", "words.csv", "--words", "word", "--group", "item", "--spillover", "1"],
    "surprisal stories": ["words.csv", "--words", "word", "--group", "item", "--state", "carry"],
    "minimal-pairs": ["pairs.jsonl", "more.jsonl"],
    "minimal-pairs each": ["pairs.jsonl", "--each"],
    "substitutes": ["text.txt", "--top", "2"],
    "substitutes targets": ["text.txt", "--targets", "targets.txt", "--top", "2"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "model"
    tiny_lm().save(path)
    return path


@pytest.fixture(autouse=True)
def _inputs(tmp_path, monkeypatch):
    """Write the inputs to the current folder, and commit after every block of two sentences."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exit, "COMMIT_SECONDS", 0.0)
    for module in (surprisal, words):
        monkeypatch.setattr(module, "SENTENCES_PER_BLOCK", 2)
    files = {
        "text.txt": "The rose. The bow!\n\nAn arrow. And the bow.\nA rose; the bows.\n" * 2,
        "more.txt": "The bow.\n",
        "words.csv": "".join(f"{word},{i // 7}\n" for i, word in enumerate(["word", *WORDS])).replace(
            "d,0", "d,item", 1
        ),
        "other.csv": "word,zone\nThe,1\nbow.,1\nA,1\nrose.,2\nThe,3\nend.,4\n",
        "pairs.jsonl": "".join(json.dumps(dict(zip(KEYS, pair))) + "\n" for pair in PAIRS),
        "more.jsonl": json.dumps(dict(zip(KEYS, PAIRS[0]))) + "\n",
        "targets.txt": "bow,bows\nrose\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")


def run(call, model, name, *options):
    return call(name.split()[0], model, *COMMANDS[name], *options)


def stop_after_commit(monkeypatch, n, *, at_once=False):
    """Interrupt the command after commit number `n`: at once, or when some rows after it were written."""
    commit, write, calls = GrowingOutput.commit, GrowingOutput.write, []

    def counted(*arguments, **state):
        commit(*arguments, **state)
        calls.append(1)
        if at_once and len(calls) >= n:
            raise KeyboardInterrupt

    def interrupted(*arguments):
        write(*arguments)
        if len(calls) >= n:
            raise KeyboardInterrupt

    monkeypatch.setattr(GrowingOutput, "commit", counted)
    monkeypatch.setattr(GrowingOutput, "write", interrupted)
    return calls


@pytest.mark.parametrize("name", COMMANDS)
def test_a_resumed_run_writes_the_same_bytes(call, model, tmp_path, monkeypatch, name):
    printed = run(call, model, name)
    assert printed.code == 0, printed.err
    out = tmp_path / "out.tsv"
    for n in (0, 1, 2, 3):
        with monkeypatch.context() as patch:
            commits = stop_after_commit(patch, n, at_once=name == "minimal-pairs" and n > 0)
            found = run(call, model, name, "--out", out)
        assert found.out == "" or out.exists()
        if not out.exists():
            assert found.code == 130
            assert (tmp_path / "out.tsv.partial").exists() == (len(commits) > 0)
            assert run(call, model, name, "--out", out, "--resume").code == 0
        assert out.read_text(encoding="utf-8") == printed.out
        assert not (tmp_path / "out.tsv.partial").exists()
        out.unlink()


@pytest.mark.parametrize(("owner", "function"), [(GrowingOutput, "commit"), (os, "fsync")])
@pytest.mark.parametrize("name", ["surprisal", "surprisal words", "minimal-pairs", "substitutes targets"])
def test_a_killed_run_is_resumed_with_the_same_bytes(call, model, tmp_path, name, owner, function):
    expected, out = run(call, model, name).out, tmp_path / "out.tsv"

    def start():
        kill_in_call(owner, function, 2)
        main([name.split()[0], str(model), *COMMANDS[name], "--out", str(out)])

    assert run_forked(start) == -signal.SIGKILL
    assert not out.exists()
    assert run(call, model, name, "--out", out).code == 2
    assert run(call, model, name, "--out", out, "--resume").code == 0
    assert out.read_text(encoding="utf-8") == expected
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.tsv"]


def test_a_kill_between_renaming_and_removing(call, model, tmp_path, monkeypatch):
    expected, out = run(call, model, "surprisal").out, tmp_path / "out.tsv"
    with monkeypatch.context() as patch:
        patch.setattr(GrowingOutput, "remove", lambda self: None)
        run(call, model, "surprisal", "--out", out)
    assert (tmp_path / "out.tsv.partial").exists()
    found = run(call, model, "surprisal", "--out", out, "--resume")
    assert found.code == 0
    assert re.search(mentions("out.tsv", "already complete"), found.err)
    assert out.read_text(encoding="utf-8") == expected
    assert not (tmp_path / "out.tsv.partial").exists()


def test_an_existing_file_is_kept_or_replaced_as_the_flags_say(call, model, tmp_path):
    out = tmp_path / "out.tsv"
    found = run(call, model, "surprisal", "--out", out)
    assert (found.code, found.out) == (0, f"{out}: 9 lines\n")
    assert re.search(mentions("surprisal", "2 inputs", out), found.err)
    content = out.read_text(encoding="utf-8")
    found = run(call, model, "surprisal", "--out", out)
    assert found.code == 2
    assert re.search(mentions("out.tsv", "--overwrite"), found.err)
    found = run(call, model, "surprisal", "--out", out, "--resume")
    assert (found.code, found.out) == (0, "")
    assert run(call, model, "surprisal lm-zoo", "--out", out, "--overwrite").code == 0
    assert out.read_text(encoding="utf-8") != content
    assert run(call, model, "surprisal", "--out", out, "--overwrite", "--resume").code == 2


def test_a_run_is_resumed_only_with_its_settings_and_text(call, model, tmp_path, monkeypatch):
    out = tmp_path / "out.tsv"
    with monkeypatch.context() as patch:
        stop_after_commit(patch, 1)
        assert run(call, model, "surprisal", "--out", out).code == 130
    found = run(call, model, "surprisal", "--out", out, "--resume", "--entropy")
    assert found.code == 2
    assert re.search(mentions("out.tsv.partial", "entropy", "--overwrite"), found.err)
    (tmp_path / "more.txt").write_text("Another.\n", encoding="utf-8")
    found = run(call, model, "surprisal", "--out", out, "--resume")
    assert found.code == 2
    assert re.search(mentions("out.tsv.partial", "text"), found.err)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--resume"], ["--resume", "--out"]),
        (["--overwrite"], ["--overwrite", "--out"]),
        (["--out", "text.txt", "--overwrite"], ["text.txt", "input"]),
        (["--out", "."], [".", "directory"]),
    ],
)
def test_wrong_calls_are_named(call, model, options, facts):
    found = run(call, model, "surprisal", *options)
    assert found.code == 2
    assert re.search(mentions(*facts), found.err)


def test_a_failed_run_leaves_nothing(call, model, tmp_path):
    (tmp_path / "latin.txt").write_bytes("The rose.\nZürich\n".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    for name, facts in (("latin.txt", ["latin.txt", "line 2", "UTF-8"]), ("empty.txt", ["empty.txt"])):
        found = call("surprisal", model, name, "--out", "new/out.tsv")
        assert found.code == 1
        assert re.search(mentions(*facts), found.err)
        assert not (tmp_path / "new").exists()
