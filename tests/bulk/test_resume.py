"""Interrupted runs of embed_file: what they leave behind, and how they are resumed."""

import json
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from facts import mentions
from forks import kill_in_call, run_forked

from torchelmo import BiLM, Elmo, embedder
from torchelmo.bulk import VectorFile, compute, embed_file, hdf5, job, outputs, partial
from torchelmo.errors import ConfigError, InputError, OutputError, OutputExistsError, TorchelmoError, WrongCallError
from torchelmo.files import hold_lock

LINES = ["I took a bow. It was fine.", "bow and arrow", "", "Zürich and 東京 are far from here.", "one", "  "]
TEXT = [*LINES, *LINES[::-1], *LINES]
SMALL = {"batch_tokens": 1}  # every line is a block


@pytest.fixture(autouse=True)
def _commit_after_every_block(monkeypatch):
    monkeypatch.setattr(job, "COMMIT_SECONDS", 0.0)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(line + "\n" for line in TEXT), encoding="utf-8")
    return path


@pytest.fixture(params=[".h5", ".npz"])
def out(request, tmp_path):
    return tmp_path / f"out{request.param}"


@pytest.fixture
def model(bilm_folder):
    return bilm_folder


@pytest.fixture
def whole(text, out, model, tmp_path_factory):
    """The output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    embed_file(text, folder / out.name, model=model, **SMALL)
    return folder / out.name


def assert_same(path, other):
    assert path.read_bytes() == other.read_bytes()


def interrupt_at_line(number, monkeypatch, call):
    append = partial.PartialOutput.append

    def interrupt(self, record):
        if self._n_written == number:
            raise KeyboardInterrupt
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(partial.PartialOutput, "append", interrupt)
        with pytest.raises(KeyboardInterrupt) as error:
            call()
    return error


@pytest.fixture
def interrupted(text, out, model, monkeypatch):
    """An unfinished output that broke off at line 7 of 18."""
    error = interrupt_at_line(7, monkeypatch, lambda: embed_file(text, out, model=model, **SMALL))
    (note,) = error.value.__notes__
    assert all(fact in note for fact in (f"{out}.partial", "lines", "resume=True"))
    assert not out.exists()
    return out


def test_resuming_gives_the_bytes_of_an_uninterrupted_run(whole, interrupted, text, model):
    with pytest.raises(OutputExistsError, match=mentions(f"{interrupted}.partial", "resume=True", "overwrite=True")):
        embed_file(text, interrupted, model=model, **SMALL)
    result = embed_file(text, interrupted, model=model, resume=True, **SMALL)
    assert (result.n_lines, result.already_complete) == (18, False)
    assert_same(interrupted, whole)
    assert sorted(path.name for path in interrupted.parent.iterdir()) == [interrupted.name, "text.txt"]


@pytest.mark.parametrize("blocks", [1, 2, 5, 64])
def test_a_resumed_run_has_the_same_cache_of_token_vectors(text, tmp_path, model, monkeypatch, blocks):
    """The last digits of a token vector depend on the words that it is encoded with."""
    monkeypatch.setattr(embedder, "BLOCKS_PER_CACHE", blocks)
    options = {"model": Elmo(model, cache=7), "batch_tokens": 3}
    embed_file(text, tmp_path / "whole.h5", **options)
    for stop in range(1, len(TEXT)):
        interrupt_at_line(stop, monkeypatch, lambda: embed_file(text, tmp_path / "out.h5", **options))
        embed_file(text, tmp_path / "out.h5", resume=True, **options)
        assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
        (tmp_path / "out.h5").unlink()


def test_the_cache_of_the_model_is_left_alone(text, tmp_path, model):
    elmo = Elmo(model)
    elmo.embed([["bow", "unrelated"], ["words"]])
    embed_file(text, tmp_path / "one.h5", model=elmo)
    embed_file(text, tmp_path / "two.h5", model=Elmo(model))
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()
    assert len(elmo.token_cache) == 5  # with <S> and </S>


@pytest.mark.parametrize("name", ["lines.jsonl", "layout.npz", "output", "journal.jsonl"])
def test_a_link_is_not_followed(interrupted, text, model, name):
    path = Path(f"{interrupted}.partial", name)
    path.rename(text.with_name("mine"))
    path.symlink_to(text.with_name("mine"))
    with pytest.raises(OutputError, match=mentions(f"{interrupted}.partial", name, "overwrite=True")):
        embed_file(text, interrupted, model=model, resume=True, **SMALL)


def test_a_journal_that_ends_within_a_block_is_refused(interrupted, text, model, monkeypatch):
    monkeypatch.setattr(compute, "_BATCHES_PER_BLOCK", 1_000)
    with pytest.raises(OutputError, match=mentions(f"{interrupted}.partial", "journal.jsonl", "overwrite=True")):
        embed_file(text, interrupted, model=model, resume=True, **SMALL)


def test_resume_of_a_finished_output_is_a_success(whole, text, out, model):
    embed_file(text, out, model=model, **SMALL)
    result = embed_file(text, out, model=model, resume=True, **SMALL)
    assert result.already_complete
    assert_same(out, whole)
    with pytest.raises(OutputExistsError, match=mentions(out, "layers", "top")):
        embed_file(text, out, model=model, resume=True, layers="top", **SMALL)
    text.write_text("another text\n")
    with pytest.raises(OutputExistsError, match=mentions(out, "text_sha256")):
        embed_file(text, out, model=model, resume=True, **SMALL)


def test_resume_without_an_earlier_run_starts_one(whole, text, out, model):
    embed_file(text, out, model=model, resume=True, **SMALL)
    assert_same(out, whole)


def test_overwrite_starts_again(interrupted, text, model):
    embed_file(text, interrupted, model=model, overwrite=True, layers="top")
    assert not Path(f"{interrupted}.partial").exists()


def test_a_carried_state_is_computed_again(text, out, model, monkeypatch):
    embed_file(text, out, model=model, state="carry", **SMALL)
    expected = out.read_bytes()
    out.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(partial.PartialOutput, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            embed_file(text, out, model=model, state="carry", **SMALL)
    embed_file(text, out, model=model, state="carry", resume=True, **SMALL)
    assert out.read_bytes() == expected


POINTS = {
    "reading the text": (partial, "_encode_line", 0),
    "laying out the file": (np, "cumsum", 0),
    "before the first settings": (np, "savez", 0),
    "before the first vector": (job, "_check_space", 0),
    "writing a vector": (partial, "_write_at", 5),
    "between data and journal": (json, "dumps", 3),
    "before the rename": (os, "replace", 2),
    "after the rename": (partial.PartialOutput, "remove", 0),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_loses_and_doubles_nothing(whole, text, out, model, point):
    def embed():
        kill_in_call(*POINTS[point])
        embed_file(text, out, model=model, **SMALL)

    assert run_forked(embed) == -signal.SIGKILL
    assert out.exists() == (point == "after the rename")
    embed_file(text, out, model=model, resume=True, **SMALL)
    assert_same(out, whole)
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name, "text.txt"]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"layers": "top"}, ["layers", "'all'", "'top'"]),
        ({"dtype": "float16"}, ["dtype", "'float32'", "'float16'"]),
        ({"pool": "max"}, ["pool", "None", "'max'"]),
        ({"lang": "de"}, ["lang", "'en'", "'de'"]),
        ({"pretokenized": True}, ["lang", "'en'", "None"]),
        ({"batch_tokens": 7}, ["batch_tokens", "1", "7"]),
    ],
)
def test_other_settings_are_refused(interrupted, text, model, options, facts):
    with pytest.raises(
        WrongCallError, match=mentions(f"{interrupted}.partial", *facts, "resume=True", "overwrite=True")
    ):
        embed_file(text, interrupted, model=model, resume=True, **SMALL | options)
    assert embed_file(text, interrupted, model=model, resume=True, **SMALL).n_lines == 18  # the refusal changed nothing


def test_another_model_is_refused(interrupted, text, tiny_bilm):
    with pytest.raises(WrongCallError, match=mentions("fingerprint", "overwrite=True")):
        embed_file(text, interrupted, model=Elmo(BiLM(tiny_bilm.config)), resume=True, **SMALL)


@pytest.mark.parametrize("change", [lambda text: text[:5], lambda text: [*text, "more"], lambda text: ["other", *text]])
def test_another_text_is_refused(interrupted, text, model, change):
    text.write_text("\n".join(change(TEXT)), encoding="utf-8")
    with pytest.raises(WrongCallError, match=mentions(f"{interrupted}.partial", "text", "overwrite=True")):
        embed_file(text, interrupted, model=model, resume=True, **SMALL)


def test_damaged_vectors_are_computed_again(whole, interrupted, text, model):
    path = Path(f"{interrupted}.partial", "output")
    content = bytearray(path.read_bytes())
    places = outputs.np.load(path.with_name("layout.npz"))["places"]
    content[places[3] + 200] ^= 1
    path.write_bytes(content)
    embed_file(text, interrupted, model=model, resume=True, **SMALL)
    assert_same(interrupted, whole)


@pytest.mark.parametrize("name", ["settings.json", "layout.npz", "lines.jsonl", "journal.jsonl", "output"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"[]",
        lambda content: content[: len(content) // 2],
        lambda content: content[:10] + b"\xff" + content[11:],
        lambda content: b"{" * 5000,
    ],
)
def test_damage_is_an_error_of_ours_or_harmless(whole, interrupted, text, model, name, damage):
    path = Path(f"{interrupted}.partial", name)
    path.write_bytes(damage(path.read_bytes()))
    try:
        embed_file(text, interrupted, model=model, resume=True, **SMALL)
    except TorchelmoError as error:
        assert str(interrupted) in str(error)  # noqa: PT017
        return
    assert_same(interrupted, whole)


def test_a_folder_of_someone_else_is_left_alone(text, out, model):
    folder = Path(f"{out}.partial")
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"mine": True}))
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputExistsError, match=mentions(folder)):
            embed_file(text, out, model=model, **options)
    assert os.listdir(folder) == ["settings.json"]


def test_only_our_files_are_removed(interrupted, text, model):
    (Path(f"{interrupted}.partial") / "notes.txt").write_text("mine")
    embed_file(text, interrupted, model=model, resume=True, **SMALL)
    assert os.listdir(f"{interrupted}.partial") == ["notes.txt"]


def test_two_runs_do_not_write_one_file(interrupted, text, model):
    folder = Path(f"{interrupted}.partial")
    with hold_lock(folder / "lock", "test"):
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(OutputError, match=mentions(folder, f"process {os.getpid()}")):
                embed_file(text, interrupted, model=model, **options, **SMALL)
    assert embed_file(text, interrupted, model=model, resume=True, **SMALL).n_lines == 18


def test_a_failure_before_the_first_vector_leaves_nothing(text, tmp_path, model, monkeypatch):
    monkeypatch.setattr(job, "_check_space", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        embed_file(text, tmp_path / "new" / "folder" / "out.h5", model=model)
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.fixture
def limit_file_size():
    """Let the system refuse to write beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("missing", [50, 1000, 5000])
def test_a_full_disk_can_be_mended(whole, text, out, model, limit_file_size, missing):
    limit_file_size(whole.stat().st_size - missing)
    with pytest.raises(OutputError, match=mentions(out, "File too large")):
        embed_file(text, out, model=model, **SMALL)
    assert not out.exists()
    limit_file_size(resource.RLIM_INFINITY)
    embed_file(text, out, model=model, resume=True, **SMALL)
    assert_same(out, whole)


def test_too_little_space_is_known_before_the_work(text, tmp_path, model, monkeypatch):
    out = tmp_path / "out.npz"
    monkeypatch.setattr(job.shutil, "disk_usage", lambda _: job.shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(OutputError, match=mentions(out, "GB")):
        embed_file(text, out, model=model)
    assert os.listdir(out.parent) == ["text.txt"]


def test_ctrl_c_while_hdf5_is_written_is_not_lost(text, tmp_path, model, monkeypatch):
    """An exception out of a signal handler could be dropped inside h5py; here it waits for a safe moment."""
    sentence_to_index = hdf5._sentence_to_index

    def interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)
        return sentence_to_index(*arguments)

    monkeypatch.setattr(hdf5, "_sentence_to_index", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore the signal
    try:
        with pytest.raises(KeyboardInterrupt):
            embed_file(text, tmp_path / "out.h5", model=model)
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_hdf5_gives_the_reason_in_its_message_only():
    text = "Can't write data (file write failed: time = now, errno = 28, error message = 'No space left on device')"
    error = hdf5._with_errno(OSError(text))
    assert (error.errno, error.strerror) == (28, "No space left on device")
    assert str(hdf5._with_errno(ValueError("something else"))) == "something else"


def test_wrong_settings_are_refused(text, out, model):
    with pytest.raises(WrongCallError, match="`layers`"):
        embed_file(text, out, model=model, layers="mix")
    with pytest.raises(ConfigError):
        embed_file(text, out, model=model, lang="klingon")
    assert os.listdir(out.parent) == ["text.txt"]


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_damaged_file_with_vectors_is_refused(text, tmp_path, model, suffix):
    out = tmp_path / f"out{suffix}"
    embed_file(text, out, model=model)
    content = out.read_bytes()
    renamed = content.replace(b"boundaries", b"bound\0ries") if suffix == ".npz" else content.replace(b"lang", b"l\0ng")
    for damage in (content[:-100], content[: len(content) // 2], b"x" * 100, renamed):
        out.write_bytes(damage)
        with pytest.raises(InputError, match=mentions(out)), VectorFile(out) as file:
            _ = (
                file.settings,
                [file[line] for line in range(len(file))],
                [file.tokens(line) for line in range(len(file))],
            )
