"""The output folder of a run: locked, marked, and never emptied of what others put there. Stop signals."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from facts import mentions
from tiny_runs import tiny_config

from torchelmo.errors import ConfigError, OutputError, OutputExistsError
from torchelmo.files import hold_lock
from torchelmo.lm.loop import pretrain
from torchelmo.runs.config import changed_setting, flatten
from torchelmo.runs.resume import LOCK, MARKER, RunFolder, Stop, check_inputs, out_of_patience

OWNED = ("model.bin", "best/model.bin")


def claim(out, **options):
    return RunFolder(out, "test", owned=OWNED, **options)


def contents(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_run_locks_and_marks_its_folder(tmp_path):
    out = tmp_path / "a" / "b"
    with claim(out) as folder:
        assert (out / LOCK).exists()
        assert not (out / MARKER).exists()
        folder.start(note=1)
        (out / "model.bin").write_text("x")
    assert contents(out) == {MARKER, "model.bin"}
    with pytest.raises(OutputExistsError, match=mentions(out, "resume=True", "overwrite=True")), claim(out):
        pass
    with claim(out, resume=True) as folder:
        assert folder.details["note"] == 1
        assert folder.checkpoint is None


def test_a_run_that_fails_before_it_starts_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), claim(tmp_path / "a" / "b"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with claim(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("name", ["model.bin", "best/model.bin", "checkpoints/epoch1.pt", MARKER])
def test_files_of_others_are_left_alone(tmp_path, name, options):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(OutputExistsError, match=mentions(tmp_path, name)), claim(tmp_path, **options):
        pass
    assert contents(tmp_path) == before


def test_only_files_of_the_run_are_replaced(tmp_path):
    with claim(tmp_path) as folder:
        folder.start()
    for name in ("model.bin", "best/model.bin", "best/notes.txt", "checkpoints/notes.txt", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with claim(tmp_path, overwrite=True) as folder:
        assert (tmp_path / "model.bin").exists()  # until the new run is sure to start
        folder.start()
    assert contents(tmp_path) == {
        "best", "best/notes.txt", "checkpoints", "checkpoints/notes.txt", "notes.txt", MARKER
    }  # fmt: skip


def test_a_run_of_another_kind_is_left_alone(tmp_path):
    with RunFolder(tmp_path, "task", owned=()) as folder:
        folder.start()
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(OutputExistsError, match=mentions(tmp_path, "test", "task")), claim(tmp_path, **options):
            pass


def test_resume_and_overwrite_contradict_each_other(tmp_path):
    with pytest.raises(ConfigError, match=mentions("resume", "overwrite")):
        claim(tmp_path, resume=True, overwrite=True)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}])
def test_pretrain_deletes_nothing_of_others(data, tmp_path, options):
    """The case that was reported: folders and files with the names that a run uses, but no run."""
    files = {
        "best/weights.bin": "mine",
        "checkpoints/epoch1.pt": "x",
        "tensorboard/events": "t",
        "vocab.txt": "v",
        "model.safetensors": "m",
    }
    out = tmp_path / "o"
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    with pytest.raises(OutputExistsError, match=mentions(out)):
        pretrain(tiny_config(data, out, steps=2), **options)
    assert {name: (out / name).read_text() for name in files} == files
    assert not (out / LOCK).exists()


HOLD = """
import sys, time
from pathlib import Path
from torchelmo.runs.resume import RunFolder
with RunFolder(Path(sys.argv[1]), "test", owned=()) as folder:
    folder.start()
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_dead_one_is_not_waited_for(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "locked\n"
        for options in ({"resume": True}, {"overwrite": True}):
            with (
                pytest.raises(OutputError, match=mentions(tmp_path, f"process {process.pid}")),
                claim(tmp_path, **options),
            ):
                pass
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert (tmp_path / LOCK).exists()  # left by the killed process
    with claim(tmp_path, resume=True):
        pass
    assert contents(tmp_path) == {MARKER}


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError), hold_lock(tmp_path / "lock", "out"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_threads_that_take_turns_never_hold_the_lock_together(tmp_path):
    held, overlaps, refused = [], [], []

    def work():
        for _ in range(50):
            try:
                with hold_lock(tmp_path / "lock", "out"):
                    overlaps.append(len(held))
                    held.append(1)
                    held.pop()
            except OutputError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(overlaps) + len(refused) == 200
    assert not any(overlaps)
    assert not list(Path(tmp_path).iterdir())


def test_the_first_setting_that_differs_is_described():
    before, now = flatten({"seed": 1, "optim": {"lr": 0.1}, "out": "a"}), flatten({"seed": 1, "optim": {"lr": 0.2}})
    assert changed_setting(before, now, {"out"}) == "optim.lr was 0.1 and is now 0.2"
    assert changed_setting(before, now, {"out", "optim.lr"}) is None


def test_an_input_that_changed_is_named(tmp_path):
    check_inputs(tmp_path, {"train": "a"}, {"train": "a"})
    with pytest.raises(ConfigError, match=mentions(tmp_path, "train", "file.txt")):
        check_inputs(tmp_path, {"train": "a"}, {"train": "b"}, paths={"train": "file.txt"})


def test_patience():
    assert [out_of_patience(n, 2) for n in (0, 1, 2, 3)] == [False, False, True, True]
    assert not out_of_patience(1000, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_requests_a_stop_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with Stop().on_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGTERM)  # schedulers send it more than once
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once():
    with Stop().on_signals() as stop:
        stop.requested = True
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_leave_signals_alone():
    def work():
        with Stop().on_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    seen, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
