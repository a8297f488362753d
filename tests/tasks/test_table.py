"""Tables of experiments: which runs are started, kept and written."""

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from facts import mentions
from tiny_runs import write_data
from tiny_tasks import pos_settings, tagged, write_ner, write_pos, write_toml

from torchelmo import Elmo
from torchelmo.config import load_config
from torchelmo.errors import ConfigError, MissingFileError, TrainingError
from torchelmo.runs.checkpoint import checkpoints
from torchelmo.tasks import train
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table import run as tables
from torchelmo.tasks.table.jobs import TaskJob
from torchelmo.tasks.table.report import Cell, write_table
from torchelmo.tasks.table.run import run_folder, run_table
from torchelmo.tasks.table.spec import Column, Row, Table, read_table

TOML = """
title = "Two tasks"
[[columns]]
name = "Baseline"
[[columns]]
name = "+ ELMo"
set = ["elmo.place='input'"]
[[rows]]
name = "POS"
config = "pos.toml"
seeds = 2
paper = "+1.0"
[[rows]]
name = "Named entities"
config = "ner.toml"
seeds = 2
set = ["batch_size=8"]
"""
CELLS = [("pos", "baseline"), ("pos", "elmo"), ("named-entities", "baseline"), ("named-entities", "elmo")]


@pytest.fixture
def table(bilm_folder, tmp_path):
    """table.toml with 2 rows, 2 columns and 2 seeds, and the configurations of its rows."""
    write_pos(tmp_path), write_ner(tmp_path)
    pos = pos_settings(tmp_path, tmp_path / "unused", epochs=1, elmo={"model": str(bilm_folder)})
    ner = {**pos, "task": "ner", "train": str(tmp_path / "train.conll"), "dev": str(tmp_path / "dev.conll")}
    write_toml(tmp_path / "pos.toml", pos)
    write_toml(tmp_path / "ner.toml", {**ner, "model": {"hidden_dims": [4, 4]}})
    (tmp_path / "table.toml").write_text(TOML)
    return tmp_path / "table.toml"


def config_of(table, out, row, column, seed, *more):
    """The settings of one run, as its TOML files say."""
    settings = ["elmo.place='input'"] if column == "elmo" else []
    settings += ["batch_size=8"] if row != "pos" else []
    name = "pos.toml" if row == "pos" else "ner.toml"
    found = load_config(TaskConfig, table.parent / name, [*settings, f"seed={seed}", *more])
    return dataclasses.replace(found, out=out / "runs" / row / column / f"seed-{seed}")


def run_all(table, out, *, seeds, but):
    """Run the cells in this process, which saves the time to start many."""
    for row, column in CELLS:
        for seed in seeds:
            if (row, column, seed) != but:
                train(config_of(table, out, row, column, seed))


def test_a_table_goes_on_where_it_was_interrupted(table, tmp_path, stop_after, monkeypatch):
    out, last = tmp_path / "out", ("named-entities", "elmo", 2)
    run_all(table, out, seeds=(1, 2), but=last)
    assert train(config_of(table, out, *last), stop=stop_after(1)).stopped
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    cells = run_table(table, out)  # one run is left
    assert [len(cell.summary.results) for cell in cells] == [2, 2, 2, 2]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items() if "checkpoints" not in path.parts)
    again = config_of(table, tmp_path / "again", *last)
    train(again)
    kept = config_of(table, out, *last).out
    assert (kept / "model.safetensors").read_bytes() == (again.out / "model.safetensors").read_bytes()
    assert "ner, seed 2: f1 " in (kept / "log.txt").read_text()

    written = json.loads((out / "table.json").read_text())["cells"]
    assert [(cell["row"], cell["column"]) for cell in written] == [
        ("POS", "Baseline"),
        ("POS", "+ ELMo"),
        ("Named entities", "Baseline"),
        ("Named entities", "+ ELMo"),
    ]
    assert [run["seed"] for run in written[0]["runs"]] == [1, 2]
    scores = [run["scores"]["accuracy"] for run in written[0]["runs"]]
    assert written[0]["mean"]["accuracy"] == pytest.approx(sum(scores) / 2)
    lines = (out / "table.md").read_text().splitlines()
    assert lines[:3] == [
        "# Two tasks",
        "",
        "| task | score | Baseline | + ELMo | increase (absolute / relative error) | in the paper |",
    ]
    assert [line.split(" | ")[:2] for line in lines[4:6]] == [["| POS", "accuracy"], ["| Named entities", "f1"]]
    assert (out / "table.png").read_bytes().startswith(b"\x89PNG")

    monkeypatch.setattr(sys, "executable", "/nowhere")  # no run is started any more
    assert run_table(table, out) == cells
    with pytest.raises(TrainingError, match=mentions("8 of 8", "seed-1", "clip", 5.0, 1.0)):
        run_table(table, out, settings=["clip=1.0"])
    assert json.loads((out / "table.json").read_text())["cells"] == []  # no number of other settings


def test_a_failed_run_is_named_with_its_log_and_the_others_are_kept(table, tmp_path):
    out = tmp_path / "out"
    table.write_text(TOML.replace("seeds = 2", "seeds = 1"))
    run_all(table, out, seeds=(1,), but=("pos", "elmo", 1))
    failed = out / "runs" / "pos" / "elmo" / "seed-1"
    failed.mkdir(parents=True)
    (failed / "model.safetensors").write_bytes(b"of something else")
    with pytest.raises(TrainingError, match=mentions("1 of 4", failed, "model.safetensors", "log.txt")):
        run_table(table, out)
    assert "model.safetensors" in (failed / "log.txt").read_text()
    written = json.loads((out / "table.json").read_text())["cells"]
    assert [cell["column"] for cell in written] == ["Baseline", "Baseline", "+ ELMo"]


def test_a_damaged_run_does_not_stop_the_others(table, tmp_path, monkeypatch, caplog):
    out, damaged = tmp_path / "out", ("pos", "baseline", 2)
    table.write_text(TOML[: TOML.rindex("[[rows]]")])  # one row
    for column, seed in (("baseline", 1), ("baseline", 2), ("elmo", 1)):
        train(config_of(table, out, "pos", column, seed))
    folder = config_of(table, out, *damaged).out
    (checkpoints(folder)[0] / "checkpoint.json").write_text("{")
    monkeypatch.setattr(sys, "executable", "/nowhere")  # the last of the four cannot be started
    with pytest.raises(TrainingError, match=mentions("2 of 4", folder, out / "runs" / "pos" / "elmo" / "seed-2")):
        run_table(table, out)
    line = (out / "table.md").read_text().splitlines()[4]
    assert line.count("(1 of 2 seeds)") == 2
    written = json.loads((out / "table.json").read_text())["cells"]
    assert [[run["seed"] for run in cell["runs"]] for cell in written] == [[1], [1]]
    with pytest.raises(TrainingError, match=mentions("1 of 2")):  # what is not asked for is no failure
        run_table(table, out, columns=["+ ELMo"])
    assert str(folder) in caplog.text


def test_a_run_that_damages_its_folder_has_failed_alone(table, tmp_path):
    config = config_of(table, tmp_path / "out", "pos", "baseline", 1)
    train(config)
    job = TaskJob(table.parent / "pos.toml", [], config)
    assert job.outcome_of_process(0).result is not None
    (checkpoints(config.out)[0] / "checkpoint.json").unlink()
    assert str(checkpoints(config.out)[0]) in job.outcome_of_process(0).failure


def test_columns_can_be_run_alone(table, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for row in ("pos", "named-entities"):
        for seed in (1, 2):
            train(config_of(table, out, row, "baseline", seed))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    cells = run_table(table, out, columns=["Baseline"])
    assert [cell.summary is None for cell in cells] == [False, True, False, True]
    assert "| – | – | +1.0 |" in (out / "table.md").read_text()
    with pytest.raises(ConfigError, match=mentions("table.toml", "'ELMo'", "'Baseline'", "'+ ELMo'")):
        run_table(table, out, columns=["ELMo"])


def test_an_unfinished_run_does_not_count(table, tmp_path, stop_after, monkeypatch):
    out = tmp_path / "out"
    longer = config_of(table, out, "pos", "baseline", 1, "epochs=3")
    assert train(longer, stop=stop_after(7)).stopped
    assert (longer.out / "metrics.json").exists()
    monkeypatch.setattr(tables, "run_jobs", lambda *_, **__: (pair for pair in ()))
    cells = run_table(table, out, settings=["epochs=3"])
    assert [cell.summary for cell in cells] == [None] * 4


@pytest.mark.slow
def test_a_table_that_is_ended_ends_its_runs(table, tmp_path):
    """They save a checkpoint, and the table can be resumed."""
    command = [sys.executable, "-m", "torchelmo", "task", "table", table, "--out", tmp_path / "out", "--jobs", "2"]
    command += ["--set", "epochs=100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    runs = [tmp_path / "out" / "runs" / "pos" / "baseline" / f"seed-{seed}" for seed in (1, 2)]
    deadline = time.monotonic() + 120
    while not all(map(checkpoints, runs)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "Traceback" not in err
    for run in runs:
        assert re.search(mentions(run, "--resume"), (run / "log.txt").read_text().splitlines()[-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('name = "+ ELMo"', 'name = "baseline"'), ("columns", "'Baseline'", "'baseline'")),
        (('name = "POS"', 'name = "…"'), ("rows", "'…'")),
        (("seeds = 2", "seeds = 0"), ("seeds", 0)),
        (('paper = "+1.0"', "papper = 1"), ("'papper'", "Did you mean 'paper'")),
        (('config = "ner.toml"', 'config = "gone.toml"'), ("gone.toml",)),
        (("batch_size=8", "bacth_size=8"), ("ner.toml", "'bacth_size'", "Did you mean 'batch_size'")),
    ],
)
def test_a_wrong_table_is_an_error_before_anything_is_run(table, tmp_path, change, words):
    table.write_text(TOML.replace(*change))
    with pytest.raises(ValueError, match=mentions(*words)):
        run_table(table, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_model_is_an_error_before_anything_is_run(table, tmp_path):
    with pytest.raises(MissingFileError, match=mentions("gone")):
        run_table(table, tmp_path / "out", settings=["elmo.model=gone"])
    assert not (tmp_path / "out").exists()


def test_names_become_folders(table, tmp_path):
    table.write_text(TOML.replace('name = "POS"', 'name = "東京 (POS)"'))
    row, column = read_table(table).rows[0], read_table(table).columns[1]
    assert run_folder(tmp_path, row, column, 1.0, 3) == tmp_path / "runs" / "東京-pos" / "elmo" / "seed-3"


SHARES = """
title = "Shares"
shares = [0.5, 1.0]
max_epochs = 3
plot = "{plot}"
[[columns]]
name = "Baseline"
[[columns]]
name = "Ours"
bilm = "bilm.toml"
set = ["elmo.place='both'", "model.hidden_dim=4"]
[[rows]]
name = "POS"
config = "pos.toml"
seeds = 1
[[claims]]
text = "half of the data is enough"
better = "Ours"
than = "Baseline"
share = 0.5
"""


@pytest.mark.slow
def test_shares_and_a_bilm_that_the_table_trains(table, tmp_path):
    """One biLM run, then 2 shares × 2 columns; the layers of the biLM are computed once."""
    table.write_text(SHARES.format(plot="shares"))
    model = {"projection_dim": 4, "cell_dim": 6, "filters": [[1, 4]], "n_highway": 1, "max_characters": 8}
    settings = {
        "data": str(write_data(tmp_path / "prepared")),
        "out": "unused",
        "steps": 2,
        "batch_size": 2,
        "unroll": 4,
        "negatives": 4,
    }
    write_toml(tmp_path / "bilm.toml", {**settings, "model": model})
    out = tmp_path / "out"
    cells = run_table(table, out, settings=["elmo.place='input'"])
    assert [(one.column.name, one.share, len(one.scores())) for one in cells] == [
        ("Baseline", 0.5, 1),
        ("Ours", 0.5, 1),
        ("Baseline", 1.0, 1),
        ("Ours", 1.0, 1),
    ]
    assert [result.epochs for one in cells for result in one.summary.results] == [2, 2, 1, 1]
    assert (out / "models" / "bilm" / "config.json").exists()
    assert len(list((out / "cache" / "layers").glob("*/*/layers.bin"))) == 2  # one per biLM
    lines = (out / "table.md").read_text()
    assert "| POS | 50 % | accuracy |" in lines
    assert "## Learned mixes" in lines
    assert "not decided: one seed" in lines
    table.write_text(SHARES.format(plot="mixes"))
    write_table(read_table(table), cells, out)


def test_a_bilm_that_fails_fails_its_column_only(table, tmp_path):
    table.write_text(SHARES.format(plot="bars").replace("shares = [0.5, 1.0]", "").replace("share = 0.5", ""))
    write_toml(tmp_path / "bilm.toml", {"data": str(tmp_path / "gone"), "out": "unused", "steps": 2})
    with pytest.raises(TrainingError, match=mentions("1 of 2", tmp_path / "out" / "models" / "bilm", "gone")):
        run_table(table, tmp_path / "out")
    (found,) = json.loads((tmp_path / "out" / "table.json").read_text())["cells"]
    assert found["column"] == "Baseline"


SHARED = """
title = "{title}"
[[columns]]
name = "Baseline"
set = ["elmo.place='none'"]
[[columns]]
name = "{column}"
set = ["elmo.place='input'", "elmo.l2={l2}"]
[[rows]]
name = "{row}"
config = "pos.toml"
"""


@pytest.fixture
def in_process(monkeypatch):
    """Train the runs of tables in this process; the folders of those that were trained."""
    trained = []

    def run_jobs(jobs, n_parallel, *, threads):
        for job in jobs:
            trained.append(job.config.out)
            train(job.config)
            yield job, job.outcome_on_disk()

    monkeypatch.setattr(tables, "run_jobs", run_jobs)
    return trained


def test_tables_share_runs_with_equal_settings(table, tmp_path, in_process):
    """The names of rows and columns do not matter, and without ELMo its settings do not."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(SHARED.format(title="1", row="POS", column="with ELMo", l2=0.001))
    second.write_text(SHARED.format(title="2", row="Tags", column="λ = 0.1", l2=0.1))
    folders = {"runs": tmp_path / "runs", "cache": tmp_path / "cache"}
    cells = run_table(first, tmp_path / "1", **folders)
    assert len(in_process) == 6
    in_process.clear()
    others = run_table(second, tmp_path / "2", **folders)
    assert len(in_process) == 3  # the baseline is there
    assert others[0].folders == cells[0].folders
    assert others[0].scores() == cells[0].scores()
    assert {folder.parent for cell in (*cells, *others) for folder in cell.folders} == {tmp_path / "runs"}
    written = json.loads((tmp_path / "2" / "table.json").read_text())["cells"]
    assert [run["folder"] for run in written[0]["runs"]] == [str(folder) for folder in cells[0].folders]
    in_process.clear()
    run_table(second, tmp_path / "2", settings=["elmo.l2=0.001", "threads=1"], **folders)
    assert in_process == []  # now it is the first table
    run_table(second, tmp_path / "2", settings=["clip=1.0"], **folders)
    assert len(in_process) == 6


def test_cells_with_equal_settings_run_once(table, tmp_path, in_process):
    table.write_text(
        SHARED.format(title="T", row="POS", column="ELMo", l2=0.1).replace("place='input'", "place='none'")
    )
    cells = run_table(table, tmp_path / "out", runs=tmp_path / "runs")
    assert len(in_process) == 3
    assert cells[0].scores() == cells[1].scores()


def test_three_seeds_and_four_columns_run_the_bilm_once(table, tmp_path, in_process, monkeypatch):
    """One run fills the cache for all, and the results are those without a cache."""
    columns = [
        f"[[columns]]\nname = '{layers}'\nset = [\"elmo.layers='{layers}'\"]" for layers in ("all", "top", "0", "1")
    ]
    table.write_text("title = 'T'\n" + "\n".join(columns) + "\n[[rows]]\nname = 'POS'\nconfig = 'pos.toml'\n")
    n_sentences = []
    original = Elmo.stream

    def stream(self, sentences, **settings):
        n_sentences.append(len(sentences))
        return original(self, sentences, **settings)

    monkeypatch.setattr(Elmo, "stream", stream)
    settings = ["elmo.place='input'"]
    cells = run_table(table, tmp_path / "out", settings=settings)
    assert len(in_process) == 12
    distinct = {tuple(one.tokens) for n, seed in ((20, 1), (12, 2)) for one in tagged(n, seed=seed)}
    assert [n for n in n_sentences if n] == [len(distinct)]
    again = []
    for cell, seed in itertools.product(cells, (1, 2, 3)):
        config = load_config(TaskConfig, table.parent / "pos.toml", [*settings, *cell.column.set, f"seed={seed}"])
        out = tmp_path / "alone" / cell.column.name / str(seed)
        again.append(train(dataclasses.replace(config, out=out)).result.score)
    assert again == [score for cell in cells for score in cell.scores()]


def test_rows_can_be_run_alone_and_nothing_at_all(table, tmp_path, in_process):
    table.write_text(TOML.replace("seeds = 2", "seeds = 1"))
    run_table(table, tmp_path / "out", rows=["Named entities"], columns=["Baseline"])
    assert [folder.parts[-3:] for folder in in_process] == [("named-entities", "baseline", "seed-1")]
    in_process.clear()
    cells = run_table(table, tmp_path / "out", train=False)
    assert in_process == []
    assert [len(cell.scores()) for cell in cells] == [0, 0, 1, 0]
    with pytest.raises(ConfigError, match=mentions("table.toml", "row", "'SRL'", "'POS'")):
        run_table(table, tmp_path / "out", rows=["SRL"])


def test_shares_are_of_the_data_of_the_row(table, tmp_path, in_process):
    table.write_text(
        SHARED.format(title="T", row="POS", column="ELMo", l2=0.1).replace(
            "[[columns]]", "shares = [0.5]\n[[columns]]", 1
        )
    )
    (table.parent / "pos.toml").write_text("share = 0.4\n" + (table.parent / "pos.toml").read_text())
    cells = run_table(table, tmp_path / "out", columns=["Baseline"])
    settings = json.loads(next(cells[0].folders[0].glob("task.json")).read_text())["config"]
    assert settings["share"] == 0.2


def test_the_name_of_the_row_in_the_settings_of_a_column(table, tmp_path, bilm_folder):
    row, column = Row("Named entities", Path("ner.toml")), Column("ELMo", ("elmo.model='models/{row}'",))
    built = tables._CellJobs.build(
        Table("T", (column,), (row,)), table.parent, Cell(row, column, None), tmp_path, [], tmp_path / "models", None
    )
    assert built.jobs[0].config.elmo.model == "models/named-entities"
