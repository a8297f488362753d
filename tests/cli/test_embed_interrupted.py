"""torchelmo embed: what an interrupted run leaves behind, and how it goes on."""

import errno
import fcntl
import io
import json
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest
from facts import mentions

from torchelmo import BiLM
from torchelmo.bulk import job as embed_lines
from torchelmo.bulk import outputs

from .conftest import LINES
from .test_embed import assert_equal, read

TEXT = [line or "blank" for line in LINES] * 2
FIRST = ("--batch-tokens", 1)  # so few that every line is done before the next one is read
SUFFIXES = [".h5", ".npz", ".safetensors"]


@pytest.fixture(autouse=True)
def _commit_after_every_line(monkeypatch):
    monkeypatch.setattr(embed_lines, "COMMIT_SECONDS", 0.0)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(line + "\n" for line in TEXT), encoding="utf-8")
    return path


@pytest.fixture
def interrupted(start, model, tmp_path):
    """Start a run that waits for more text after eight lines, end it by a signal, and give what it said."""

    def interrupt(out: Path, number: int) -> tuple[int, str]:
        process = start("embed", "-", "--out", out, "--model", model, *FIRST)
        process.stdin.write("".join(line + "\n" for line in TEXT[:8]))
        process.stdin.flush()
        wait_for(lambda: committed(out) == 8, process)
        process.send_signal(number)
        code = process.wait(60)  # standard input is still open: it must end without any more of it
        said = process.stderr.read()
        process.communicate()
        return code, said

    return interrupt


def committed(out: Path) -> int:
    path = Path(f"{out}.partial", "committed.json")
    return json.loads(path.read_text(encoding="utf-8"))["n_lines"] if path.exists() else 0


def wait_for(condition, process) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("suffix", "number", "code"),
    [
        (".h5", signal.SIGINT, 130),
        (".npz", signal.SIGTERM, 143),
        (".safetensors", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_resuming_gives_the_file_of_an_uninterrupted_run(
    interrupted, call, model, text, tmp_path, suffix, number, code
):
    out, whole = tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    found, said = interrupted(out, number)
    assert found == code
    assert "Traceback" not in said
    if number != signal.SIGKILL:
        (last,) = said.splitlines()
        assert re.search(mentions(f"{out}.partial", "8 lines", "--resume"), last)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == [f"{out.name}.partial"]

    result = call("embed", text, "--out", out, "--model", model)
    assert result.code == 2
    assert re.search(mentions(f"{out}.partial", "--resume", "--overwrite"), result.err)

    assert call("embed", text, "--out", out, "--model", model, "--resume", *FIRST).code == 0
    assert call("embed", text, "--out", whole, "--model", model, *FIRST).code == 0
    assert_equal(read(out), read(whole))
    assert len(read(out)) == 16
    if suffix == ".h5":
        with h5py.File(out) as one, h5py.File(whole) as other:
            assert one["sentence_to_index"][0] == other["sentence_to_index"][0]
    assert not Path(f"{out}.partial").exists()


BAD = b"".join(line.encode() + b"\n" for line in TEXT[:13]) + b"\xff\n"


def test_an_interrupted_run_with_carried_state_leaves_nothing(call, model, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(BAD)))
    result = call("embed", "-", "--out", tmp_path / "out.h5", "--model", model, "--state", "carry")
    assert result.code == 1
    assert re.search(mentions("line 14", "iconv"), result.err)
    assert "--resume" not in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def partial(tmp_path, call, model, text, monkeypatch):
    """What a run leaves that broke off in the middle: the first 13 lines of 16."""
    out = tmp_path / "out.npz"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(BAD)))
    result = call("embed", "-", "--out", out, "--model", model, *FIRST)
    assert result.code == 1
    assert re.search(mentions("line 14", "UTF-8", f"{out}.partial", "13 lines"), result.err)
    return out


def test_overwrite_starts_again(partial, call, model, text):
    assert call("embed", text, "--out", partial, "--model", model, "--overwrite", "--layers", "top").code == 0
    assert not Path(f"{partial}.partial").exists()


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--layers", "top"), ["layers", "'all'", "'top'"]),
        (("--dtype", "float16"), ["dtype", "'float32'", "'float16'"]),
        (("--pool", "max"), ["pool", None, "'max'"]),
        (("--tokenize", "en"), ["tokenize", None, "'en'"]),
        (("--batch-tokens", "7"), ["batch_tokens", 1, 7]),
    ],
)
def test_other_settings_are_refused(partial, call, model, text, options, facts):
    result = call("embed", text, "--out", partial, "--model", model, "--resume", *FIRST, *options)
    assert result.code == 2
    assert re.search(mentions(*facts, "--resume", "--overwrite"), result.err)
    assert committed(partial) == 13  # the refusal harms nothing


def test_another_model_is_refused(partial, call, tiny_bilm, text, tmp_path):
    other = BiLM(tiny_bilm.config)
    other.save(tmp_path / "other")
    result = call("embed", text, "--out", partial, "--model", tmp_path / "other", "--resume", *FIRST)
    assert result.code == 2
    assert re.search(mentions(f"{partial}.partial", "--overwrite") + r"(?=.*\bmodel\b)", result.err)


def test_another_text_is_refused(partial, call, model, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["I took a bow", "something else", *TEXT[2:]]), encoding="utf-8")
    result = call("embed", other, "--out", partial, "--model", model, "--resume", *FIRST)
    assert result.code == 2
    assert re.search(mentions("line 2", "'bow and arrow'", "'something else'"), result.err)

    other.write_text("\n".join(TEXT[:5]), encoding="utf-8")
    result = call("embed", other, "--out", partial, "--model", model, "--resume", *FIRST)
    assert result.code == 2
    assert re.search(mentions(other, "line 6", repr(TEXT[5])), result.err)


def test_carried_state_cannot_be_resumed(partial, call, model, text):
    result = call("embed", text, "--out", partial, "--model", model, "--resume", "--state", "carry")
    assert result.code == 2
    assert re.search(mentions("--resume", "--state carry", "--overwrite"), result.err)


def test_resume_without_an_earlier_run_starts_one(call, model, text, tmp_path):
    assert call("embed", text, "--out", tmp_path / "out.npz", "--model", model, "--resume").code == 0


def test_resume_after_an_end_before_the_first_commit_starts_again(partial, call, model, text):
    Path(f"{partial}.partial", "committed.json").unlink()
    assert call("embed", text, "--out", partial, "--model", model, "--resume", *FIRST).code == 0


def test_two_runs_do_not_write_one_file(partial, call, model, text):
    with open(Path(f"{partial}.partial", "vectors.bin"), "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # as the other run holds it
        for option in ("--resume", "--overwrite"):
            result = call("embed", text, "--out", partial, "--model", model, option, *FIRST)
            assert result.code == 1
            assert re.search(mentions(f"{partial}.partial", "--out"), result.err)
    assert committed(partial) == 13


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda folder: os.truncate(folder / "vectors.bin", 10), ["vectors"]),
        (lambda folder: os.truncate(folder / "lines.jsonl", 10), ["lines"]),
        (lambda folder: (folder / "committed.json").write_text("{"), ["committed.json"]),
        (lambda folder: (folder / "settings.json").unlink(), ["settings.json"]),
    ],
)
def test_a_damaged_partial_folder_is_refused(partial, call, model, text, damage, facts):
    damage(Path(f"{partial}.partial"))
    result = call("embed", text, "--out", partial, "--model", model, "--resume", *FIRST)
    assert result.code == 1
    assert re.search(mentions(f"{partial}.partial", *facts, "--overwrite"), result.err)


@pytest.fixture
def limit_file_size():
    """The system refuses to let files grow beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_while_vectors_are_computed(call, model, text, tmp_path, limit_file_size):
    out = tmp_path / "out.h5"
    limit_file_size(6000)
    result = call("embed", text, "--out", out, "--model", model)
    assert result.code == 1
    assert re.search(mentions(f"{out}.partial", "File too large"), result.err)
    assert "Traceback" not in result.err
    assert not out.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_room_for_the_file_itself_can_be_mended(call, model, text, tmp_path, limit_file_size, suffix):
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert call("embed", text, "--out", whole, "--model", model).code == 0
    limit_file_size(whole.stat().st_size - 100)  # the vectors alone still fit
    result = call("embed", text, "--out", out, "--model", model)
    assert result.code == 1
    (message,) = [line for line in result.err.splitlines() if str(out) in line]
    assert re.search(mentions(out, "File too large", f"{out}.partial", "16 lines", "--resume"), message)
    assert not out.exists()
    assert not list(Path(f"{out}.partial").glob("made*"))
    limit_file_size(resource.RLIM_INFINITY)
    assert call("embed", text, "--out", out, "--model", model, "--resume").code == 0
    assert out.read_bytes() == whole.read_bytes()


def test_hdf5_names_the_reason_in_its_message_only():
    text = "Can't write data (file write failed: time = now, errno = 28, error message = 'No space left on device')"
    error = outputs._with_errno(OSError(text))
    assert (error.errno, error.strerror) == (28, "No space left on device")
    assert str(outputs._with_errno(ValueError("something else"))) == "something else"


def test_safetensors_has_room_for_some_lines_only(call, model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(embed_lines, "MOST_SAFETENSORS_LINES", 10)
    result = call("embed", text, "--out", tmp_path / "out.safetensors", "--model", model)
    assert result.code == 1
    assert re.search(mentions("out.safetensors", "10 lines", ".h5"), result.err)


def test_no_permission(call, model, text, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    result = call("embed", text, "--out", folder / "out.h5", "--model", model)
    folder.chmod(0o700)
    assert result.code == 1
    assert re.search(mentions(folder, os.strerror(errno.EACCES)), result.err)


def test_a_file_in_the_way_of_the_folder(call, model, text):
    result = call("embed", text, "--out", text / "out.h5", "--model", model)
    assert result.code == 1
    assert str(text / "out.h5") in result.err


def test_leftovers_of_an_end_while_the_file_was_made_do_no_harm(partial, call, model, text):
    shutil.copy(text, Path(f"{partial}.partial", "made.npz"))
    assert call("embed", text, "--out", partial, "--model", model, "--resume", *FIRST).code == 0
