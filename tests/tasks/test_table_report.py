"""Reports on tables of experiments: increases, claims, and what is written and drawn."""

import json
import re
import sys

import pytest
from facts import mentions

from torchelmo.errors import ConfigError
from torchelmo.tasks.table.report import Cell, decide, to_markdown, write_table
from torchelmo.tasks.table.spec import Claim, Column, Row, Table
from torchelmo.tasks.task import Result, read_result, summarize


def test_without_matplotlib_there_is_no_plot(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    row, column = Row("NER", "ner.toml"), Column("Baseline")
    with caplog.at_level("INFO", logger="torchelmo"):
        write_table(Table("T", (column,), (row,)), [Cell(row, column, summary(90.0))], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json", "table.md"]
    assert re.search(mentions("matplotlib", "pip install 'torchelmo[tasks]'"), caplog.text)


def test_increases_are_absolute_and_relative():
    row, columns = Row("NER", "ner.toml", seeds=2, paper="+2.1"), (Column("Baseline"), Column("ELMo"), Column("Top"))
    found = {"Baseline": summary(90.0, 88.0), "ELMo": summary(91.2), "Top": None}
    cells = [Cell(row, column, found[column.name]) for column in columns]
    line = to_markdown(Table("T", columns, (row,)), cells).splitlines()[4]
    assert line == "| NER | f1 | 89.00 ± 1.41 | 91.20 (1 of 2 seeds) | +2.20 / 20.0 % | – | – | +2.1 |"


def test_a_result_that_is_none_is_named(tmp_path):
    (tmp_path / "metrics.json").write_text('{"mean": {}, "sd": {}, "seeds": {}}')
    with pytest.raises(ConfigError, match=mentions("metrics.json", "'mean'")):
        read_result(tmp_path)


def summary(*scores):
    rest = {"best_epoch": 1, "epochs": 1, "steps": 1, "seconds": 1.0, "bilm_seconds": 0.0, "parameters": 1}
    return summarize(
        [Result("ner", "f1", seed, {"f1": score}, mixes=[], finished=True, **rest) for seed, score in enumerate(scores)]
    )


def cell(row, column, scores, share=1.0, folders=()):
    return Cell(row, column, summary(*scores), share, tuple(folders))


def test_claims_are_decided_beyond_two_standard_errors():
    row, columns = Row("NER", "ner.toml"), (Column("Baseline"), Column("ELMo"), Column("Top"))
    claims = [Claim(f"{one} beats {other}", one, other) for one, other in (("ELMo", "Baseline"), ("Baseline", "Top"))]
    claims += [Claim("Top beats ELMo", "Top", "ELMo"), Claim("of no row", "Top", "ELMo", rows=("SRL",))]
    table = Table("T", columns, (row, Row("SRL", "srl.toml")), tuple(claims))
    cells = [
        cell(row, columns[0], (88.0, 90.0)),
        cell(row, columns[1], (94.0, 96.0)),
        cell(row, columns[2], (89.0, 90.5)),
    ]
    cells += [Cell(table.rows[1], column, None) for column in columns]
    found = decide(table, cells)
    assert [decision.verdict for decision in found] == ["holds", "not decided", "does not hold"]
    assert found[0].difference == pytest.approx(6.0)
    assert found[0].error == pytest.approx((2.0 / 2 + 2.0 / 2) ** 0.5)
    text = to_markdown(table, cells)
    assert "| ELMo beats Baseline | NER |  | 95.00 against 89.00 | +6.00 ± 1.41 | holds |" in text
    assert "Not complete: NER, Baseline (100 %)" in text  # two of three seeds
    one_seed = [cell(row, column, (90.0,)) for column in columns] + cells[3:]
    assert decide(table, one_seed)[0].verdict == "not decided: one seed"


def test_epochs_to_reach_the_best_score_of_the_baseline(tmp_path):
    row, columns = Row("SRL", "srl.toml", seeds=2), (Column("Baseline"), Column("ELMo"))
    folders = []
    for number, scores in enumerate([(70, 80, 85, 90), (70, 82, 84, 90), (88, 91), (90, 91)]):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        lines = [json.dumps({"step": i, "epoch": i, "scores": {"f1": float(s)}}) for i, s in enumerate(scores, 1)]
        (folders[-1] / "epochs.jsonl").write_text("\n".join(lines) + "\n")
    claim = Claim("fewer epochs", "ELMo", "Baseline", measure="epochs")
    table = Table("T", columns, (row,), (claim,), plot="epochs")
    cells = [
        cell(row, columns[0], (90.0, 90.0), folders=folders[:2]),
        cell(row, columns[1], (91.0, 91.0), folders=folders[2:]),
    ]
    (found,) = decide(table, cells)
    assert found.better == [2.0, 1.0]
    write_table(table, cells, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "table.json").read_text())["cells"][1]["runs"][0]["history"] == [88.0, 91.0]
    assert (tmp_path / "out" / "table.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("plot", ["bars", "shares", "epochs", "mixes"])
def test_a_plot_is_drawn_even_if_every_run_is_missing(tmp_path, plot):
    row, column = Row("NER", "ner.toml"), Column("Baseline")
    write_table(Table("T", (column,), (row,), plot=plot), [Cell(row, column, None)], tmp_path)
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
