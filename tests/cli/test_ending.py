"""How a call ends: one message, no traceback, the right exit code."""

import gzip
import os
import subprocess
import sys

import pytest
import typer

from torchelmo import BiLMConfig, __version__
from torchelmo.cli import app
from torchelmo.cli import exit as ending
from torchelmo.cli.exit import run
from torchelmo.errors import OutputError, OutputExistsError, WrongCallError


def test_version(call):
    assert call("--version") == (0, f"torchelmo {__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("embed",), ("info",), ("convert",)])
def test_help(call, command):
    result = call(*command, "--help")
    assert (result.code, result.err) == (0, "")
    assert "Usage: torchelmo" in result.out


def test_any_encoding_of_the_system_will_do():
    """As where a program is redirected on Windows: neither λ nor … is a fault."""
    command = [sys.executable, "-m", "torchelmo", "task", "train", "--help"]
    result = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"}, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "λ of the penalty" in result.stdout.decode("utf-8")


def test_every_option_has_help():
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing command. See torchelmo --help."),
        (("embd",), "No such command 'embd'. Did you mean 'embed'? See torchelmo --help."),
        (("embed",), "Missing argument 'INPUT'. See torchelmo embed --help."),
        (("embed", "TEXT"), "Missing option '--out'. See torchelmo embed --help."),
        (("embed", "TEXT", "--out", "x.h5", "--fast"), "No such option: --fast"),
        (("embed", "TEXT", "--out", "x.h5", "--pool", "sum"), "Invalid value for '--pool'"),
        (("embed", "TEXT", "--out", "x.h5", "--batch-tokens", "0"), "Invalid value for '--batch-tokens'"),
        (("embed", "TEXT", "--out", "x.h5", "--batch-tokens", "many"), "Invalid value for '--batch-tokens'"),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "3"), "--layers 3: expected all, top, average, or an index"),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "-1"), "or an index from 0 to 2."),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "tpo"), "Did you mean 'top'?"),
        (("embed", "TEXT", "--out", "x.h5", "--layers", "mix"), "--layers mix: expected all, top, average"),
        (("embed", "TEXT", "--out", "x.txt"), "--out x.txt: expected a name that ends in .h5, .hdf5, .npz"),
        (("embed", "TEXT", "--out", "x.h5", "--device", "abacus"), "--device abacus: cannot be used here ("),
        (("embed", "TEXT", "--out", "x.h5", "--device", "cuda:99"), "--device cuda:99: cannot be used here ("),
        (("embed", "TEXT", "--out", "x.h5", "--tokenize", "klingon"), "Language 'klingon': expected a code"),
        (("embed", "missing.txt", "--out", "x.h5"), "missing.txt: expected a text file, found nothing. Check"),
        (("embed", ".", "--out", "x.h5"), ".: expected a text file, found a directory."),
        (("embed", "TEXT", "--out", "folder.h5"), "--out folder.h5: expected the name of a file, found a dir"),
        (("embed", "TEXT", "--out", "old.h5"), "--out old.h5: exists. Choose another name, or replace it with"),
        (("embed", "old.h5", "--out", "old.h5", "--overwrite"), "--out old.h5: is the input itself."),
        (("perplexity",), "Missing argument 'MODEL'. See torchelmo perplexity --help."),
        (("info", "nowhere"), "nowhere: expected a model folder, or the name of a model inside the package"),
        (("info", "old.h5"), "old.h5: expected a model folder, found a file."),
        (("info", "folder.h5"), "found neither"),
    ],
)
def test_a_wrong_call_is_explained_and_does_nothing(call, model, text, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "old.h5").write_bytes(b"older")
    before = sorted(os.listdir(tmp_path))
    given = [text.name if argument == "TEXT" else argument for argument in arguments]
    if len(given) > 3:
        given += ["--model", str(model)]
    result = call(*given)
    assert words in result.err
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "old.h5").read_bytes() == b"older"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.txt", b"", "text.txt: expected text, one sentence per line; it is empty."),
        ("text.txt", b"fine\nbad \xff byte\n", "text.txt: line 2: expected UTF-8, found the byte 0xff at column 5."),
        ("text.gz", gzip.compress(b"some words\n" * 99, mtime=0)[:-9], "text.gz: expected .gz data, but it is damaged"),
        ("text.gz", b"not packed", "text.gz: expected .gz data, but it is damaged"),
    ],
)
def test_bad_text_fails_before_any_work(call, model, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    result = call("embed", tmp_path / name, "--out", tmp_path / "out.h5", "--model", model)
    assert words in result.err
    assert (result.code, result.out) == (1, "")
    assert len(result.err.splitlines()) == 1
    assert os.listdir(tmp_path) == [name]


def test_empty_standard_input(call, model, tmp_path, monkeypatch):
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        result = call("embed", "-", "--out", tmp_path / "out.h5", "--model", model)
    assert result.code == 1
    assert "-: expected text, one sentence per line; it is empty." in result.err
    assert os.listdir(tmp_path) == []


def test_a_damaged_model_is_a_failed_job(call, tiny_bilm, text, tmp_path):
    folder = tmp_path / "model"
    tiny_bilm.save(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for arguments in (("info", folder), ("embed", text, "--out", tmp_path / "x.h5", "--model", folder)):
        result = call(*arguments)
        assert result.code == 1
        assert "damaged or cut short" in result.err
        assert len(result.err.splitlines()) == 1


def test_settings_that_contradict_each_other_are_a_wrong_call(call, tiny_bilm, tmp_path):
    folder = tmp_path / "model"
    tiny_bilm.save(folder)
    card = folder / "config.json"
    card.write_text(card.read_text(encoding="utf-8").replace('"n_layers"', '"n_layres"'), encoding="utf-8")
    result = call("info", folder)
    assert result.code == 2
    assert "has no key 'n_layres'. Did you mean 'n_layers'?" in result.err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (WrongCallError("That cannot be."), 2, "That cannot be.\n"),
        (OutputError("No room."), 1, "No room.\n"),
        (OutputExistsError("It is there."), 2, "It is there.\n"),
        (OSError(5, "Input/output error", "disk"), 1, "The system refused: [Errno 5] Input/output error: 'disk'.\n"),
        (
            MemoryError(),
            1,
            "Not enough memory. Take less at once: a smaller --batch-tokens or batch_size, or shorter lines.\n",
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), 1, "Not enough memory."),
        (ZeroDivisionError("by zero"), 1, "Unexpected ZeroDivisionError: by zero. This is a fault in torchelmo"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_error_ends_in_words_and_a_code(capsys, error, code, words):
    assert run(lambda: fail(error)) == code
    said = capsys.readouterr().err
    assert said.startswith(words)
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
    assert capsys.readouterr().err == "n_layers must be at least 1, got 0.\n"


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
    assert result.stderr == (
        "standard output: could not be written (No space left on device). "
        "The disk is full: free some space or choose another place.\n"
    )
