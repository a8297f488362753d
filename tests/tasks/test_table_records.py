"""Records of finished runs: which runs another machine repeats, and what the file holds after every run."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from facts import mentions
from tiny_tasks import pos_settings, write_pos, write_toml

from torchelmo.errors import BusyError, ConfigError, MissingFileError, TrainingError
from torchelmo.files import hold_lock
from torchelmo.tasks import train
from torchelmo.tasks.table import records as records_module
from torchelmo.tasks.table import run as tables
from torchelmo.tasks.table.jobs import JobOutcome, TaskJob
from torchelmo.tasks.table.records import RecordFile, find_commit, machine_name
from torchelmo.tasks.table.run import run_table

TOML = """
title = "Records"
plot = "epochs"
[[columns]]
name = "Baseline"
[[columns]]
name = "ELMo"
set = ["elmo.place='input'"]
[[rows]]
name = "POS"
config = "pos.toml"
seeds = 2
"""


class Machine:
    """A folder in which a table runs, with the file of records that all machines share."""

    def __init__(self, table, out, records):
        self.table, self.out, self.records = table, out, records
        self.trained = []  # places of ELMo, and names of biLMs, in the order of training by any machine

    def run(self, **settings):
        self.trained.clear()
        return run_table(self.table, self.out, runs=self.out / "tasks", records=self.records, **settings)

    def cells(self):
        """The cells of table.json without the folders, and the folders."""
        cells = json.loads((self.out / "table.json").read_text())["cells"]
        folders = [run.pop("folder") for cell in cells for run in cell["runs"]]
        return cells, folders

    def lines(self):
        return self.records.read_text().splitlines()


@pytest.fixture
def model(tiny_bilm, tmp_path):
    """A model folder that a test may replace."""
    tiny_bilm.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def other_bilm(tiny_bilm):
    other = copy.deepcopy(tiny_bilm)
    with torch.no_grad():
        next(other.parameters()).add_(0.5)
    return other


@pytest.fixture
def machines(model, tiny_bilm, tmp_path, monkeypatch):
    """Two machines. They train in this process, unless `fail` has the seed of the run."""
    write_pos(tmp_path)
    write_toml(tmp_path / "pos.toml", pos_settings(tmp_path, tmp_path / "unused", epochs=2, elmo={"model": str(model)}))
    (tmp_path / "table.toml").write_text(TOML)
    found = [Machine(tmp_path / "table.toml", tmp_path / name, tmp_path / "runs.json") for name in ("one", "two")]

    def run_jobs(jobs, n_parallel, *, threads):
        for job in jobs:
            for machine in found:
                machine.trained.append(job.config.elmo.place if isinstance(job, TaskJob) else job.out.name)
            if not isinstance(job, TaskJob):
                found[0].bilm.save(job.out)
                yield job, JobOutcome()
            elif job.config.seed in found[0].fail:
                yield job, JobOutcome(failure="out of luck")
            else:
                train(job.config)
                yield job, job.outcome_on_disk()

    found[0].fail, found[0].bilm = (), tiny_bilm
    monkeypatch.setattr(tables, "run_jobs", run_jobs)
    return found


def test_a_second_machine_trains_nothing_and_writes_the_same_table(machines, tmp_path):
    one, two = machines
    cells = one.run()
    assert one.trained == ["none", "none", "input", "input"]
    assert (one.lines()[0], one.lines()[-1]) == ("{", "}")
    assert len(one.lines()) == 6  # one for each run
    assert one.lines()[1:-1] == sorted(one.lines()[1:-1])
    (tmp_path / "train.conllu").rename(tmp_path / "gone")  # the data is not in git
    others = two.run()
    assert two.trained == []
    assert not (two.out / "tasks").exists()
    assert two.cells()[0] == one.cells()[0]
    assert set(two.cells()[1]) == {""}
    assert (two.out / "table.md").read_text() == (one.out / "table.md").read_text()
    assert (two.out / "table.png").exists()
    assert [len(history) for cell in others for history in cell.histories()] == [2, 2, 2, 2]
    assert [cell.histories() for cell in others] == [cell.histories() for cell in cells]
    run = two.cells()[0][1]["runs"][0]
    assert (run["commit"], run["machine"]) == (find_commit(), machine_name())
    assert run["mixes"][0]["place"] == "input"
    assert two.run(train=False) == others


def test_other_settings_are_trained(machines):
    one, two = machines
    one.run()
    two.run(settings=["clip=1.0"], columns=["Baseline"])
    assert two.trained == ["none", "none"]
    assert len(one.lines()) == 8


def test_a_record_of_another_bilm_or_of_other_data_is_not_used(machines, model, other_bilm, tmp_path):
    one, two = machines
    one.run()
    shutil.rmtree(model)
    other_bilm.save(model)
    two.run(train=False)
    assert [cell["column"] for cell in two.cells()[0]] == ["Baseline"]
    two.run()
    assert two.trained == ["input", "input"]
    assert len(two.lines()) == 6  # the new records replace those of the other biLM
    shutil.rmtree(two.out)
    two.run()
    assert two.trained == []

    (tmp_path / "dev.conllu").write_text((tmp_path / "train.conllu").read_text())
    two.run()
    assert two.trained == ["none", "none", "input", "input"]


def test_a_run_on_disk_is_recorded_and_has_priority(machines):
    one, two = machines
    one.run()
    one.records.unlink()
    one.run(train=False)
    assert len(one.lines()) == 6
    (run, *_) = one.cells()[0][0]["runs"]
    assert (run["commit"], run["machine"]) == ("unknown", "unknown")  # nobody saw how it was trained
    assert Path(one.cells()[1][0]).is_dir()

    records = json.loads(one.records.read_text())
    for record in records.values():
        record["result"]["scores"]["accuracy"] = 1.0
        record["commit"] = "abc"
    one.records.write_text(json.dumps(records))
    two.run()
    assert [cell["mean"]["accuracy"] for cell in two.cells()[0]] == [1.0, 1.0]
    one.run()
    assert one.cells()[0][0]["mean"]["accuracy"] != 1.0
    assert '"accuracy": 1.0' not in one.records.read_text()


def test_a_recorded_run_keeps_its_commit(machines, monkeypatch):
    one, two = machines
    monkeypatch.setattr(records_module, "find_commit", lambda: "aaaaaaa")
    one.run(columns=["Baseline"])
    monkeypatch.setattr(records_module, "find_commit", lambda: "bbbbbbb")
    monkeypatch.setattr(records_module, "machine_name", lambda: "another processor, 4 cores")
    one.run()
    two.run()
    for machine in machines:
        cells, _ = machine.cells()
        assert [{run["commit"] for run in cell["runs"]} for cell in cells] == [{"aaaaaaa"}, {"bbbbbbb"}]
        assert cells[1]["runs"][0]["machine"] == "another processor, 4 cores"
        assert cells[0]["runs"][0]["machine"] == machine_name()


def test_a_failed_run_leaves_the_others_recorded(machines):
    one, two = machines
    one.fail = (2,)
    with pytest.raises(TrainingError, match=mentions("2 of 4", "out of luck")):
        one.run()
    assert len(one.lines()) == 4
    one.fail = ()
    two.run()
    assert two.trained == ["none", "input"]


def test_a_killed_table_has_recorded_what_was_finished(machines, monkeypatch):
    one, two = machines
    run_jobs = tables.run_jobs

    def killed(jobs, n_parallel, *, threads):
        for number, ended in enumerate(run_jobs(jobs, n_parallel, threads=threads)):
            if number == 3:
                raise KeyboardInterrupt
            yield ended

    monkeypatch.setattr(tables, "run_jobs", killed)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert len(one.lines()) == 5
    monkeypatch.setattr(tables, "run_jobs", run_jobs)
    two.run()
    assert two.trained == ["input"]


@pytest.fixture
def trained_bilm(machines, tmp_path):
    """The second column has a biLM that the table trains."""
    write_toml(tmp_path / "bilm.toml", {"data": "data", "out": "unused", "hours": 0.1})
    (tmp_path / "table.toml").write_text(TOML.replace("set = [", 'bilm = "bilm.toml"\nset = ['))
    return machines


def test_a_bilm_is_not_trained_for_recorded_runs(trained_bilm, tmp_path):
    one, two = trained_bilm
    one.run()
    assert one.trained == ["bilm", "none", "none", "input", "input"]
    one.run()
    assert one.trained == []
    two.run()
    assert two.trained == []
    assert not (two.out / "models").exists()
    assert two.cells()[0] == one.cells()[0]
    write_toml(tmp_path / "bilm.toml", {"data": "data", "out": "elsewhere", "hours": 0.2})
    two.run(train=False)
    assert [cell["column"] for cell in two.cells()[0]] == ["Baseline"]  # the records are of a shorter training
    before = one.records.read_bytes()
    one.run(train=False)
    assert one.records.read_bytes() == before  # the biLM in the folder may not have the settings of the file


def bilms_of(machine):
    """The hashes of the biLMs in the file of records."""
    records = json.loads(machine.records.read_text()).values()
    return {record["inputs"]["elmo.model"] for record in records if "elmo.model" in record["inputs"]}


def test_a_cell_does_not_mix_runs_of_two_bilms(trained_bilm, tiny_bilm, other_bilm):
    one, two = trained_bilm
    one.fail = (2,)
    with pytest.raises(TrainingError):
        one.run()
    one.fail, one.bilm = (), other_bilm
    two.run()
    assert two.trained == ["bilm", "none", "input", "input"]  # the record of seed 1 is of another biLM now
    assert bilms_of(two) == {other_bilm.fingerprint()[:16]}
    one.bilm = tiny_bilm
    one.run()
    assert one.trained == ["bilm", "input"]  # seed 1 is on disk
    assert bilms_of(one) == {tiny_bilm.fingerprint()[:16]}


def test_records_of_several_bilms_are_not_mixed(trained_bilm, tmp_path):
    one, two = trained_bilm
    one.run()
    records = json.loads(one.records.read_text())
    changed = next(name for name, record in records.items() if "elmo.model" in record["inputs"])
    records[changed]["inputs"]["elmo.model"] = "0" * 16
    one.records.write_text(json.dumps(records))
    two.run(train=False)
    assert [len(cell["runs"]) for cell in two.cells()[0]] == [2, 1]


def test_a_named_model_that_is_gone_is_needed_for_missing_runs_only(machines, model):
    one, two = machines
    one.run()
    shutil.rmtree(model)
    two.run()
    assert two.trained == []
    with pytest.raises(MissingFileError, match=mentions(model)):
        two.run(settings=["clip=1.0"])


def test_records_need_a_folder_of_runs(machines, tmp_path):
    with pytest.raises(ConfigError, match=mentions("runs.json", "runs")):
        run_table(tmp_path / "table.toml", tmp_path / "out", records=tmp_path / "runs.json")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{\n<<<<<<< HEAD\n"pos-1": {}\n', ("JSON",)),
        ("[1]", ("list",)),
        ('{"pos-1": {"result": {}}}', ("pos-1",)),
        ('{"pos-1": 1}', ("pos-1",)),
    ],
)
def test_a_damaged_file_is_an_error_before_anything_is_run(machines, content, words):
    one, _ = machines
    one.records.write_text(content)
    with pytest.raises(ConfigError, match=mentions(one.records, *words, "git checkout", "delete")):
        one.run()
    assert one.trained == []
    assert one.records.read_text() == content


def test_a_record_without_its_score_is_damaged(machines):
    one, _ = machines
    one.run(columns=["Baseline"])
    one.records.write_text(one.records.read_text().replace('"metric": "accuracy"', '"metric": "f1"'))
    with pytest.raises(ConfigError, match=mentions(one.records, "pos-", "'f1'")):
        one.run()


WRITE = """
import dataclasses, sys
from pathlib import Path
from torchelmo.tasks.table.records import RecordFile
path = Path(sys.argv[1])
record = next(iter(RecordFile(path)._records.values()))
writer = RecordFile(path)
print("ready", flush=True)
sys.stdin.readline()
for number in range(25):
    writer._write({f"{sys.argv[2]}-{number}": record})
"""


def test_processes_that_write_at_the_same_time_lose_nothing(machines):
    one, _ = machines
    one.run(columns=["Baseline"])
    command = [sys.executable, "-c", WRITE, str(one.records)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    writers = [subprocess.Popen([*command, name], **pipes, env=environment) for name in ("a", "b")]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    names = json.loads(one.records.read_text()).keys()
    assert names >= {f"{name}-{number}" for name in "ab" for number in range(25)}
    assert len(names) == 52
    assert [path.name for path in one.records.parent.glob(".runs.json*")] == []


def test_a_lock_that_is_held_too_long_is_an_error(machines, monkeypatch):
    one, _ = machines
    one.run(columns=["Baseline"])
    monkeypatch.setattr(records_module, "_LOCK_SECONDS", 0.1)
    file = RecordFile(one.records)
    with hold_lock(one.records.with_name(".runs.json.lock"), "records"), pytest.raises(BusyError):
        file._write(dict(file._records))
