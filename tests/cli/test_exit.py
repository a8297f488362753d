"""How a call ends: one message, no traceback, the right exit code."""

import ast
import csv
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from facts import mentions

import torchelmo
from torchelmo import BiLMConfig, __version__
from torchelmo.cli import app
from torchelmo.cli import exit as ending
from torchelmo.cli.exit import run
from torchelmo.errors import OutputError, OutputExistsError, WrongCallError

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_version(call):
    assert call("--version") == (0, f"torchelmo {__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("embed",), ("info",), ("convert",)])
def test_help(call, command):
    result = call(*command, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"torchelmo {''.join(command)}" in result.out


def test_the_list_of_commands_is_not_cut(call):
    listed = call("help")
    assert listed.code == 0
    assert listed == call("--help")
    assert not re.search(r"[^\]]\.\.\.\n", listed.out), listed.out
    assert call("help", "task", "train") == call("task", "train", "--help")


def test_any_encoding_of_the_system_will_do():
    """As where a program is redirected on Windows: neither λ nor … is a fault."""
    command = [sys.executable, "-m", "torchelmo", "task", "train", "--help"]
    result = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"}, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "λ" in result.stdout.decode("utf-8")


def test_every_option_has_help():
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((), ["torchelmo --help"]),
        (("embd",), ["'embd'", "Did you mean 'embed'", "torchelmo --help"]),
        (("embed",), ["INPUT", "torchelmo embed --help"]),
        (("embed", "TEXT"), ["--out", "torchelmo embed --help"]),
        (("embed", "TEXT", "--out", "x.h5", "--fast"), ["--fast"]),
        (("embed", "TEXT", "--out", "x.h5", "--pool", "sum"), ["--pool", "sum"]),
        (("embed", "TEXT", "--out", "x.h5", "--batch-tokens", "0"), ["--batch-tokens"]),
        (("embed", "TEXT", "--out", "x.h5", "--batch-tokens", "many"), ["--batch-tokens"]),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "3"), ["--layers", "3", "0 to 2"]),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "-1"), ["--layers -1", 0, 2]),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "tpo"), ["--layers tpo", "Did you mean 'top'"]),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "mix"), ["--layers mix", "all", "top", "average"]),
        (("embed", "TEXT", "--out", "x.txt"), ["--out x.txt", ".h5", ".hdf5", ".npz"]),
        (("embed", "TEXT", "--out", "x.h5", "--device", "abacus"), ["--device abacus"]),
        (("embed", "TEXT", "--out", "x.h5", "--device", "cuda:99"), ["--device cuda:99"]),
        (("embed", "TEXT", "--out", "x.h5", "--lang", "klingon"), ["'klingon'"]),
        (("embed", "missing.txt", "--out", "x.h5"), ["missing.txt"]),
        (("embed", ".", "--out", "x.h5"), ["."]),
        (("embed", "TEXT", "--out", "old.h5"), ["--out old.h5", "--overwrite"]),
        (("embed", "old.h5", "--out", "old.h5", "--overwrite"), ["--out old.h5"]),
        (("perplexity",), ["MODEL", "torchelmo perplexity --help"]),
        (("info", "nowhere"), ["nowhere", "english-small"]),
        (("info", "old.h5"), ["options.json"]),
        (("info", "folder.h5"), ["folder.h5", "config.json", "options.json"]),
    ],
)
def test_a_wrong_call_is_explained_and_does_nothing(call, model, text, tmp_path, monkeypatch, arguments, facts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "old.h5").write_bytes(b"older")
    before = sorted(os.listdir(tmp_path))
    given = [text.name if argument == "TEXT" else argument for argument in arguments]
    if len(given) > 3:
        given += ["--model", str(model)]
    result = call(*given)
    assert re.search(mentions(*facts), result.err)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "old.h5").read_bytes() == b"older"


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("text.txt", b"", ["text.txt"]),
        ("text.txt", b"fine\nbad \xff byte\n", ["text.txt", "line 2", "UTF-8", "0xff", "column 5"]),
        ("text.gz", gzip.compress(b"some words\n" * 99, mtime=0)[:-9], ["text.gz"]),
        ("text.gz", b"not packed", ["text.gz"]),
    ],
)
def test_bad_text_fails_before_any_work(call, model, tmp_path, name, content, facts):
    (tmp_path / name).write_bytes(content)
    result = call("embed", tmp_path / name, "--out", tmp_path / "out.h5", "--model", model)
    assert re.search(mentions(*facts), result.err)
    assert (result.code, result.out) == (1, "")
    assert len(result.err.splitlines()) == 1
    assert os.listdir(tmp_path) == [name]


def test_empty_standard_input(call, model, tmp_path, monkeypatch):
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        result = call("embed", "-", "--out", tmp_path / "out.h5", "--model", model)
    assert result.code == 1
    assert "standard input" in result.err
    assert os.listdir(tmp_path) == []


def test_a_damaged_model_is_a_failed_job(call, tiny_bilm, text, tmp_path):
    folder = tmp_path / "model"
    tiny_bilm.save(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for arguments in (("info", folder), ("embed", text, "--out", tmp_path / "x.h5", "--model", folder)):
        result = call(*arguments)
        assert result.code == 1
        assert str(weights) in result.err
        assert len(result.err.splitlines()) == 1


def test_settings_that_contradict_each_other_are_a_wrong_call(call, tiny_bilm, tmp_path):
    folder = tmp_path / "model"
    tiny_bilm.save(folder)
    card = folder / "config.json"
    card.write_text(card.read_text(encoding="utf-8").replace('"n_layers"', '"n_layres"'), encoding="utf-8")
    result = call("info", folder)
    assert result.code == 2
    assert re.search(mentions(card, "'n_layres'", "Did you mean 'n_layers'"), result.err)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (WrongCallError("That cannot be."), 2, "That cannot be\\.\n"),
        (OutputError("No room."), 1, "No room\\.\n"),
        (OutputExistsError("It is there."), 2, "It is there\\.\n"),
        (OSError(5, "Input/output error", "disk"), 1, mentions("[Errno 5] Input/output error: 'disk'")),
        (MemoryError(), 1, mentions("--batch-tokens", "batch_size")),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), 1, mentions("--batch-tokens", "batch_size")),
        (ZeroDivisionError("by zero"), 1, mentions("ZeroDivisionError", "by zero", "TORCHELMO_DEBUG=1")),
        (KeyboardInterrupt(), 130, ".+\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_error_ends_in_words_and_a_code(capsys, error, code, words):
    assert run(lambda: fail(error)) == code
    said = capsys.readouterr().err
    assert re.match(words, said)
    assert len(said.splitlines()) <= 1


def test_what_was_noted_on_an_error_is_said_in_the_same_line(capsys):
    error = OutputError("No room.")
    error.add_note("Something was kept.")
    run(lambda: fail(error))
    assert capsys.readouterr().err == "No room. Something was kept.\n"


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("TORCHELMO_DEBUG", "1")
    assert run(lambda: fail(OutputError("No room."))) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nNo room.\n")


def test_a_setting_may_be_wrong_deep_inside(capsys):
    assert run(lambda: BiLMConfig(n_layers=0)) == 2
    assert re.fullmatch(mentions("n_layers", 1, 0) + r"[^\n]*\n", capsys.readouterr().err)


def fail(error: BaseException) -> None:
    raise error


def program(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
    """`python -m torchelmo …`, as a shell would run it."""
    command = [sys.executable, "-m", "torchelmo", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)  # type: ignore[call-overload]


def test_a_reader_that_goes_away_ends_the_program_quietly(model):
    reading, writing = os.pipe()
    os.close(reading)
    result = program("info", model, stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (ending.PIPE_CLOSED, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_on_a_full_disk(model):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = program("info", model, stdout=full)
    assert result.returncode == 1
    assert re.fullmatch(mentions("standard output", "No space left on device") + r"[^\n]*\n", result.stderr)


def test_control_characters_are_escaped_on_a_terminal_only(capsys, monkeypatch):
    text = "\x1b]0;title\x07\x1b[2J tab\tok\x9b1m"
    ending.echo(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    ending.echo(text)
    assert capsys.readouterr().out == "\\x1b]0;title\\x07\\x1b[2J tab\tok\\x9b1m\n"


def test_control_characters_in_errors_and_metadata_are_escaped(call, tiny_bilm, tmp_path):
    assert "\x1b" not in call("info", "no\x1b[2Jmodel").err
    folder = tmp_path / "model"
    tiny_bilm.save(folder)
    card = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(card | {"origin": "\x1b]0;PWNED\x07"}), encoding="utf-8")
    assert r"\x1b]0;PWNED\x07" in call("info", folder).out


def test_a_group_has_an_alias_and_help_has_a_short_name(call):
    assert "neighbours" in call("analyze", "-h").out
    assert "analyze" not in call("-h").out
    assert call("embed", "-h").code == 0


def test_the_model_may_be_left_out(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text('He said "bow" .\n', encoding="utf-8")
    result = call("surprisal", "text.txt", "--pretokenized")
    assert result.code == 0, result.err
    rows = list(csv.DictReader(result.out.splitlines(), delimiter="\t"))
    assert [row["token"] for row in rows] == ["He", "said", '"bow"', "."]
    assert call("surprisal", "english-small").code == 2
    result = call("surprisal", "missing.txt")
    assert (result.code, "missing.txt" in result.err) == (2, True)


def test_arguments_of_the_library_are_reported_as_flags(call, tmp_path):
    (tmp_path / "text.txt").write_text("Ann sees it.\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()
    done = call("prepare", tmp_path / "text.txt", "--out", tmp_path / "data")
    assert re.search(mentions(tmp_path / "data", "--out", "--overwrite"), done.err)


def test_every_flag_that_replaces_an_argument_exists():
    commands = json.loads((Path(__file__).parents[1] / "pinned" / "commands.json").read_text())
    assert set(ending._FLAGS.values()) <= {flag for flags in commands.values() for flag in flags}


def test_messages_of_the_library_name_no_flags():
    """A Python user has no flags. Exceptions: whole commands, and modules that call or show other programs."""
    others = {"tasks/table/jobs.py", "tasks/table/records.py", "compat/allennlp/__main__.py", "formats/hub.py"}
    package = Path(torchelmo.__file__).parent
    for path in package.rglob("*.py"):
        if path.parent.name == "cli" or path.relative_to(package).as_posix() in others:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
                text = re.sub(r"torchelmo [a-z-]+ --[a-z-]+", "", node.value)
                assert not re.search(r"(?<![\w-])--[a-z]", text), f"{path}:{node.lineno}: {node.value}"
