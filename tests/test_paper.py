"""experiments/paper: every experiment in small, on data of a few sentences, and the page that is written from them."""

import dataclasses
import importlib
import json
import lzma
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from facts import mentions
from tiny_runs import write_data
from tiny_senses import write_all
from tiny_squad import paragraphs, write_squad
from tiny_tasks import tagged, write_ner, write_vectors

from torchelmo import Elmo
from torchelmo.config import load_config
from torchelmo.lm import PretrainConfig, pretrain
from torchelmo.tasks import pos, train
from torchelmo.tasks.coref.data import Document, Mention, write_documents
from torchelmo.tasks.table import run as tables
from torchelmo.tasks.table.jobs import JobOutcome, TaskJob
from torchelmo.tasks.table.spec import read_table

FOLDER = Path(__file__).parents[1] / "experiments" / "paper"
SCRIPTS = ("finetune", "oov", "page", "results", "table", "table4", "table5")
DOCUMENT = Document(
    "bn/x", "0", [["Anna", "saw", "her", "brother", "."], ["He", "waved", "."]], [], "bn",
    [[Mention(0, 1), Mention(2, 3)], [Mention(2, 4), Mention(5, 6)]],
)  # fmt: skip
PROPOSITION = """\
d/1 {0} 0 They PRP (S* - - (ARG0*)
d/1 {0} 1 saw VBD (VP* see see.01 (V*)
d/1 {0} 2 stars NNS *)) - - (ARG1*)

"""


@pytest.fixture(scope="module")
def scripts():
    """The modules of the folder, which import each other by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.dont_write_bytecode", True)  # the folder is part of the wheel
        patch.syspath_prepend(str(FOLDER))
        yield {name: importlib.import_module(name) for name in SCRIPTS}
        for name in SCRIPTS:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the files that the experiments name, each with a few sentences."""
    root = tmp_path_factory.mktemp("paper")
    tasks = root / "data" / "tasks"
    for name in (
        "ner_wnut17",
        "pos_ud_ewt",
        "srl_ewt_propbank",
        "sst5",
        "snli_small",
        "squad_small",
        "wsd/semeval2007",
    ):
        (tasks / name).mkdir(parents=True)
    write_ner(tasks / "ner_wnut17")
    pairs = [{"gold_label": label, "sentence1": "A dog runs .", "sentence2": "It sleeps ."}
             for label in ("neutral", "entailment", "contradiction")]  # fmt: skip
    for part in ("train", "dev"):
        pos.write(tasks / f"pos_ud_ewt/{part}.conllu", tagged(20), pos.PosData(column="xpos"))
        text = "".join(PROPOSITION.format(i) for i in range(6))
        (tasks / f"srl_ewt_propbank/{part}.gold_conll").write_text(text)
        trees = "(3 (2 It) (3 (2 works) (3 (2 very) (3 well))))\n(1 (2 It) (0 (2 fails) (1 (2 so) (2 often))))\n"
        (tasks / f"sst5/{part}.txt").write_text(3 * trees)
        (tasks / f"snli_small/{part}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in 2 * pairs))
        write_squad(tasks / f"squad_small/{part}-v1.1.json", paragraphs())
        (tasks / "coref_litbank" / part).mkdir(parents=True)
        write_documents(tasks / f"coref_litbank/{part}/a.conll", [DOCUMENT])
    (root / "data/vectors").mkdir()
    plain = write_vectors(root / "data/vectors/plain.txt", dim=50).read_bytes()
    (root / "data/vectors/glove.6B.50d.100k.txt.xz").write_bytes(lzma.compress(plain))
    write_data(root / "data/english")
    return root


@pytest.fixture
def in_process(data, monkeypatch):
    """Run the jobs of a table in this process, in small. Returns the number of runs that were trained."""
    trained = []

    def run_jobs(jobs, n_parallel, *, threads):
        for job in jobs:
            if isinstance(job, TaskJob):
                trained.append(job.config.out)
                train(job.config)
                yield job, job.outcome_on_disk()
            else:
                changes = [f"out={json.dumps(str(job.out))}", "steps=2", "batch_size=2", "unroll=4", "negatives=4"]
                changes += ["model.projection_dim=4", "model.cell_dim=6", "model.max_characters=8"]
                pretrain(load_config(PretrainConfig, job.file, changes), resume=True)
                yield job, JobOutcome()

    def read_small(path):
        table = read_table(path)
        rows = tuple(dataclasses.replace(row, seeds=1, set=(*row.set, "share=1.0")) for row in table.rows)
        return dataclasses.replace(table, rows=rows)

    monkeypatch.chdir(data)
    monkeypatch.setattr(tables, "run_jobs", run_jobs)
    monkeypatch.setattr(tables, "read_table", read_small)
    return trained


@pytest.mark.slow
def test_every_table_in_small(scripts, data, in_process, bilm_folder, tmp_path):
    """All tables run in one folder: equal settings are trained once."""
    for name in ("table1", "table2", "table3", "table6", "taglm", "figure2", "gamma", "ablations", "figure1"):
        scripts["table"].run(name, tmp_path, records=tmp_path / "runs.json", model=str(bilm_folder))
        check_result(tmp_path / name / "result.json", name, n_more_claims=6 if name == "figure2" else 0)
    assert len(in_process) == len(set(in_process))
    in_process.clear()
    scripts["table"].run("epochs", tmp_path, records=tmp_path / "runs.json", model=str(bilm_folder))
    check_result(tmp_path / "epochs" / "result.json", "epochs")
    assert in_process == []  # all of its runs are runs of table 1
    scripts["table"].run("table1", tmp_path / "empty", records=tmp_path / "empty.json", train=False)
    result = json.loads((tmp_path / "empty" / "table1" / "result.json").read_text())
    assert (result["runs"], result["claims"]) == (0, [])
    assert result["missing"] == 36

    table = json.loads((tmp_path / "ablations" / "table.json").read_text())
    result = scripts["oov"].run(tomllib.loads((FOLDER / "oov.toml").read_text(encoding="utf-8")), table)
    assert [row[0] for row in result["tables"][0]["rows"]] == [
        "words outside the vocabulary",
        "words of the vocabulary",
    ]
    assert [claim["verdict"] for claim in result["claims"]] == ["not decided: one seed"]


@pytest.mark.slow
def test_table_7_in_small(scripts, data, in_process, tmp_path, monkeypatch):
    (data / "runs").unlink(missing_ok=True)
    (data / "runs").symlink_to(tmp_path)  # the table names runs/paper/models
    monkeypatch.setattr(scripts["finetune"], "SETTINGS", ["steps=2", "batch_size=2", "unroll=4", "negatives=4"])
    for _ in range(2):  # the second time, everything is there
        scripts["table"].run("table7", Path("runs/paper"), records=tmp_path / "runs.json")
    check_result(tmp_path / "paper" / "table7" / "result.json", "table7", n_more_claims=3)
    assert len(in_process) == 6
    result = json.loads((tmp_path / "paper" / "table7" / "result.json").read_text())
    assert [row[0] for row in result["tables"][0]["rows"]] == ["SST-5", "SNLI", "SQuAD"]
    assert all(claim["over"].endswith("sentences") for claim in result["claims"][:3])


def check_result(path, name, n_more_claims=0):
    result, spec = json.loads(path.read_text()), tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    assert result["runs"] == len(spec["rows"]) * len(spec["columns"]) * len(spec.get("shares", [1.0]))
    n_claims = sum(len(claim.get("rows", spec["rows"])) for claim in spec.get("claims", []))
    assert len(result["claims"]) == n_claims + n_more_claims
    assert result["commit"]
    assert "cores" in result["machine"]


def test_table_5_in_small(scripts, tmp_path, tiny_bilm):
    files = {name: str(path) for name, path in write_all(tmp_path).items()}
    spec = tomllib.loads((FOLDER / "table5.toml").read_text(encoding="utf-8"))
    result = scripts["table5"].run({**spec, **files, "train_share": 0.5, "heldout_share": 0.5}, Elmo(tiny_bilm))
    (table,) = result["tables"]
    assert table["head"][:4] == ["test", "words", "first sense", "most frequent sense"]
    assert [row[0] for row in table["rows"]] == [row["name"] for row in spec["rows"]]
    assert len(result["claims"]) == len(spec["rows"]) * len(spec["claims"])
    first = next(claim for claim in result["claims"] if claim["text"] == "Layer 2 is better than the first sense")
    assert first["over"] == "7 words"


def test_table_4_in_small(scripts, data, tmp_path, monkeypatch, tiny_bilm):
    monkeypatch.chdir(data)
    spec = tomllib.loads((FOLDER / "table4.toml").read_text(encoding="utf-8"))
    (tmp_path / "text.txt").write_text(
        "They saw a play in town. He likes to play the old piano. No.\n\nA new play opened here.\n"
    )
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("play 1 0\nplays 0.9 0.1\ngame 0.8 0.3\ntree 0 1\n")
    treebank = tmp_path / "train.conllu"
    both = [tagged(1)[0]._replace(tokens=["the", "play"], tags=["DET", tag]) for tag in ("NOUN", "VERB")]
    longer = [one._replace(tokens=[*one.tokens, "."], tags=[*one.tags, "END"]) for one in both]
    pos.write(treebank, [*both, *longer], pos.PosData())
    changes = {"vectors": str(vectors), "texts": [str(tmp_path / "text.txt")], "treebank": str(treebank)}
    changes |= {"queries": spec["queries"][:2], "min_usages": 2, "n_words": 2}
    result = scripts["table4"].run({**spec, **changes}, Elmo(tiny_bilm))
    static, usages, shares = result["tables"]
    assert static["rows"] == [["play", "plays, game"]]
    assert [row[0].count("**play**") for row in usages["rows"]] == [1, 1]
    assert all("**play**" in row[1] or "**" in row[1] for row in usages["rows"])
    assert [row[0] for row in shares["rows"]] == ["77 words with two senses", "UD English EWT"]
    assert shares["rows"][0][1] == pytest.approx(100 / 3)
    assert [claim["over"] for claim in result["claims"]] == 2 * ["77 words"] + 2 * ["1 words"]


def test_equally_near_usages_count_in_equal_parts(scripts):
    same = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)
    share = scripts["table4"].share_of_nearest(np.ones((3, 2), dtype=np.float32), same, np.eye(3, dtype=bool))
    assert share == pytest.approx((0.5 + 0.5 + 0) / 3)


def test_paired_values_decide(scripts):
    compare = scripts["results"].compare_pairs
    claim = compare("better", "words", [100.0, 100.0, 0.0, 100.0], [0.0, 0.0, 0.0, 100.0], "words")
    assert (claim["difference"], claim["over"], claim["verdict"]) == (50.0, "4 words", "not decided")
    assert claim["standard_error"] == pytest.approx(28.87, abs=0.01)
    assert compare("better", "words", [2.0] * 9 + [3.0], [1.0] * 10, "words")["verdict"] == "holds"
    assert compare("better", "words", [1.0], [2.0], "words")["verdict"] == "not decided: one seed"


def test_how_little_data_is_enough_is_interpolated(scripts):
    reach = scripts["results"].reach
    assert reach([0.01, 0.1, 1.0], [10.0, 20.0, 30.0], 15.0) == pytest.approx(0.01 * 10**0.5)
    assert reach([0.01, 0.1, 1.0], [10.0, 20.0, 30.0], 40.0) is None
    assert reach([0.01, 0.1, 1.0], [10.0, 20.0, 30.0], 5.0) == 0.01
    assert reach([0.1, 0.2, 1.0], [16.0, 14.0, 20.0], 15.0) == pytest.approx(0.2 * 5 ** (1 / 6))  # from there on
    cells = [
        {"row": "POS", "column": name, "share": share, "mean": {"f1": mean}, "runs": [{"metric": "f1"}]}
        for name, means in (("baseline", (10.0, 15.0)), ("with ELMo", (10.0, 20.0)))
        for share, mean in zip((0.1, 1.0), means)
    ]
    spec = {"shares": [0.1, 1.0], "columns": [{"name": "baseline"}, {"name": "with ELMo"}], "rows": [{"name": "POS"}]}
    by_place = {(cell["row"], cell["column"], cell["share"]): cell for cell in cells}
    [table] = scripts["results"]._share_tables(spec, by_place)
    assert table["rows"] == [["POS", 15.0, "32 %"]]
    del by_place["POS", "baseline", 0.1]  # a cell that was not run
    assert scripts["results"]._share_tables(spec, by_place) == []


def test_a_recorded_run_is_not_trained_on_another_machine(
    scripts, data, in_process, bilm_folder, tmp_path, monkeypatch
):
    """The result names the commits and the machines of all runs. The model of a recorded run is not here."""
    records, model, results = tmp_path / "runs.json", str(bilm_folder), []
    monkeypatch.setattr("torchelmo.tasks.table.records.find_commit", lambda: f"commit{len(in_process)}")
    monkeypatch.setattr("torchelmo.tasks.table.records.machine_name", lambda: f"machine {len(in_process)}")
    for name in ("one", "two"):
        scripts["table"].run("table6", tmp_path / name, records=records, model=model)
        results.append(json.loads((tmp_path / name / "table6" / "result.json").read_text()))
    assert len(in_process) == 4
    assert results[0] == results[1]
    assert results[0]["commit"] == "commit1, commit2, commit3, commit4"
    assert results[0]["machine"] == "machine 1; machine 2; machine 3; machine 4"
    spec = {"table": "table6", "row": "POS", "columns": ["layer 1", "layer 2"], "rows": [], "title": ""}
    with pytest.raises(SystemExit, match=mentions("'POS'", "record", "table6", "--records")):
        scripts["oov"].run(spec, json.loads((tmp_path / "two" / "table6" / "table.json").read_text()))


def test_the_page_shows_what_was_run_and_what_was_not(scripts, tmp_path):
    page, results = scripts["page"], tmp_path / "results"
    runs = tmp_path / "runs"
    (runs / "table6").mkdir(parents=True)
    (runs / "table6" / "table.png").write_bytes(b"png")
    text = "Layer 1 is better at syntax than layer 2"
    claim = scripts["results"].compare_runs(text, "POS", [94.0, 96.0], [88.0, 90.0])
    tables = [{"title": "", "head": ["task", "layer 1"], "rows": [["POS", 95.0]]}]
    result = {"title": "T", "tables": tables, "claims": [claim], "runs": 4, "missing": 8, "minutes": 3.2}
    scripts["results"].save_result(runs / "table6" / "result.json", result)
    page.take_over(runs, results, tmp_path)
    found = page.write_page(results, tmp_path)
    assert f"| {text} | POS | 97.3 > 96.8 | 95.00 against 89.00 | +6.00 ± 1.41 (2 seeds) | holds | table6 |" in found
    of_row = "layer 1 97.3, layer 2 96.8"
    assert f"| Context is better than the token alone | POS | {of_row} | – | – | not run yet | table6 |" in found
    assert "Partly run: table6." in found
    assert "0 of 14 experiments are complete." in found
    assert "4 task runs, 8 more are not finished; 3 minutes of wall-clock time" in found
    assert "![Table 6: parts of speech by a linear probe (dev)](paper-table6.png)" in found
    assert found.count("Not run yet.\n") == 13
    assert ": 1 hold, 0 do not hold, 0 are not decided" in found


def test_the_page_in_the_documentation_is_that_of_the_results(scripts):
    """Every number of the page is generated."""
    path = Path(__file__).parents[1] / "docs" / "explanation" / "paper.md"
    assert path.read_text(encoding="utf-8") == scripts["page"].write_page(FOLDER / "results", path.parent)


def test_every_experiment_is_on_the_page(scripts):
    names = {path.stem for path in FOLDER.glob("*.toml") if not path.stem.startswith("bilm-")}
    assert names == set(scripts["page"].ORDER)
