"""Unfinished output: what belongs to a job, what is removed, and files that grow."""

import json
import os

import pytest
from facts import mentions

from torchelmo.errors import BusyError, OutputError, OutputExistsError, WrongCallError
from torchelmo.unfinished import GrowingOutput, check_output, is_partial, partial_folder

SETTINGS = {"layers": "top", "seed": 1}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.tsv"


def output(out, settings=SETTINGS):
    return GrowingOutput(out, "test", settings, unit="rows")


def interrupt(out):
    """Leave an unfinished output with two safe rows, and one that is not safe."""
    with pytest.raises(KeyboardInterrupt) as stopped, output(out).open() as job:  # noqa: PT012
        job.begin(resume=False)
        job.write("output", b"one\n")
        job.write("output", b"two\n")
        job.commit(2, place=7)
        job.write("output", b"three\n")
        raise KeyboardInterrupt
    return stopped.value


def resume(out, settings=SETTINGS):
    with output(out, settings).open() as job:
        job.begin(resume=True)
        assert (job.n_committed, job.state) == (2, {"place": 7})
        job.write("output", b"3\n")
        job.commit(3)
        job.publish("output")


def test_a_resumed_run_continues_after_the_last_commit(out):
    error = interrupt(out)
    assert not out.exists()
    assert error.__notes__ == [f"{partial_folder(out)} has the first 2 rows; continue with resume=True."]
    resume(out)
    assert out.read_text(encoding="utf-8") == "one\ntwo\n3\n"
    assert list(out.parent.iterdir()) == [out]


def test_a_start_that_fails_leaves_nothing(tmp_path):
    out = tmp_path / "new" / "out.tsv"
    with pytest.raises(ZeroDivisionError), output(out).open() as job:  # noqa: PT012
        job.begin(resume=False)
        job.write("output", b"one\n")
        raise ZeroDivisionError
    assert not out.parent.exists()


def test_other_settings_are_refused(out):
    interrupt(out)
    with pytest.raises(WrongCallError, match=mentions(partial_folder(out), "layers", "'top'", "'all'")):
        resume(out, {"layers": "all", "seed": 1})
    resume(out)


@pytest.mark.parametrize("content", [b"one\n", b"one\nTWO\n", b""])
def test_a_damaged_file_is_named(out, content):
    interrupt(out)
    (partial_folder(out) / "output").write_bytes(content)
    with pytest.raises(OutputError, match=mentions(partial_folder(out), "output", "overwrite=True")):
        resume(out)


@pytest.mark.parametrize("state", [None, {}, {"n": 2}, {"n": "x", "job": {}}, {"n": 2, "job": {}, "sizes": []}])
def test_a_damaged_state_is_named(out, state):
    interrupt(out)
    card = partial_folder(out) / "settings.json"
    card.write_text(json.dumps(json.loads(card.read_text(encoding="utf-8")) | {"state": state}), encoding="utf-8")
    with pytest.raises(OutputError, match=mentions(partial_folder(out), "settings.json", "overwrite=True")):
        resume(out)


def test_links_are_not_followed(out, tmp_path):
    interrupt(out)
    path = partial_folder(out) / "output"
    path.rename(tmp_path / "mine")
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(OutputError, match=mentions(partial_folder(out), "output")):
        resume(out)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


def test_two_processes_do_not_write_the_same_output(out):
    with output(out).open() as job, pytest.raises(BusyError, match=mentions(job.folder)), output(out).open():
        pass


def test_files_of_others_stay(out):
    interrupt(out)
    (partial_folder(out) / "mine.txt").write_text("mine", encoding="utf-8")
    resume(out)
    assert os.listdir(partial_folder(out)) == ["mine.txt"]


def test_what_belongs_to_a_job(out, tmp_path):
    folder = partial_folder(out)
    assert not is_partial(folder, "test")
    folder.mkdir()
    (folder / "lock").touch()  # killed before the settings were written
    assert is_partial(folder, "test")
    (folder / "settings.json").write_text("[]", encoding="utf-8")
    assert not is_partial(folder, "test")
    (folder / "settings.json").unlink()
    interrupt(out)
    assert is_partial(folder, "test")
    assert not is_partial(folder, "embed")
    (tmp_path / "link.partial").symlink_to(folder)
    assert not is_partial(tmp_path / "link.partial", "test")


def check(out, *, resume=False, overwrite=False, **options):
    check_output(out, "test", resume=resume, overwrite=overwrite, **options)


def test_wrong_calls_are_named(out, tmp_path):
    check(out)
    with pytest.raises(WrongCallError, match=mentions("resume=True", "overwrite=True")):
        check(out, resume=True, overwrite=True)
    with pytest.raises(WrongCallError, match=mentions(out, ".npz, .parquet")):
        check(out, suffixes=[".npz", ".parquet"])
    with pytest.raises(WrongCallError, match=mentions(tmp_path, "directory")):
        check(tmp_path)
    out.touch()
    with pytest.raises(WrongCallError, match=mentions(out, "input")):
        check(out, overwrite=True, inputs=["-", tmp_path / "absent", out])
    with pytest.raises(OutputExistsError, match=mentions(out, "overwrite=True")):
        check(out)
    check(out, overwrite=True)
    check(out, resume=True)


def test_an_unfinished_output_needs_a_decision(out):
    interrupt(out)
    with pytest.raises(OutputExistsError, match=mentions(partial_folder(out), "resume=True", "overwrite=True")):
        check(out)
    check(out, resume=True)
    check(out, overwrite=True)
    with pytest.raises(OutputExistsError, match=mentions(partial_folder(out), "left alone")):
        check_output(out, "embed", resume=True, overwrite=False)
