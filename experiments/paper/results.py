"""The results of the experiments as small JSON files, from which page.py writes the page of the paper.

result.json of an experiment has

    title                  of the experiment
    tables                 [{"title", "head", "rows"}] for the page, which rounds the numbers
    claims                 [{"text", "row", "better", "than", "difference", "standard_error", "over", "verdict"}]
    model                  the biLM and its version, unless the experiment trains its own
    runs, missing          the number of finished task runs, and of those that are not finished
    minutes                the duration of all of them by the clock, also of those that other tables share
    commit, machine        the code that trained the runs, and the computer; several of them if the runs differ
"""

import argparse
import math
import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torchelmo
from torchelmo.files import write_json
from torchelmo.tasks.table.records import find_commit, machine_name
from torchelmo.tasks.table.report import judge

HERE = Path(__file__).parent
MIX_CLAIM = "At the input, layer 1 has more weight than each of the others"
Settings = dict[str, Any]  # the content of a TOML file


def run_analysis(description: str | None, run: Callable[[Settings, torchelmo.Elmo], Settings]) -> None:
    """Run an experiment that only needs a biLM: read the arguments and the TOML file, call `run`, save its result."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, help="the TOML file of the experiment")
    parser.add_argument("--out", type=Path, required=True, help="the folder for result.json")
    parser.add_argument("--model", default=None, help="a model folder or name (default: the model in the package)")
    given = parser.parse_args()
    elmo = torchelmo.Elmo(torchelmo.load(given.model))
    save_result(given.out / "result.json", {**run(read_toml(given.settings), elmo), "model": elmo.bilm.origin})


def save_result(path: Path, result: Settings) -> None:
    """Write a result with the commit and the machine of this call, unless it names those of its runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"commit": find_commit(), **result, "machine": result.get("machine") or machine_name()})


def result_of_table(spec: Settings, found: Settings) -> Settings:
    """Return the result of `torchelmo task table`: mean and standard deviation of every cell, mixes, and claims."""
    cells = {(cell["row"], cell["column"], cell["share"]): cell for cell in found["cells"]}
    columns = [column["name"] for column in spec["columns"]]
    shares = spec.get("shares", [1.0])
    rows, n_expected = [], 0
    for row in spec["rows"]:
        for share in shares:
            of_row = [cells.get((row["name"], column, share)) for column in columns]
            n_expected += row.get("seeds", 3) * len(columns)
            metric = next((cell["runs"][0]["metric"] for cell in of_row if cell), "")
            start = [row["name"], *([f"{100 * share:g} %"] if len(shares) > 1 else []), metric]
            rows.append([*start, *(_show_cell(cell) for cell in of_row), row.get("paper", "")])
    head = ["task", *(["share"] if len(shares) > 1 else []), "score", *columns, "in the paper"]
    runs = [run for cell in found["cells"] for run in cell["runs"]]
    claims = [
        {
            "text": claim["text"],
            "row": claim["row"],
            "better": statistics.fmean(claim["better"]),
            "than": statistics.fmean(claim["than"]),
            "unit": "epochs" if claim["measure"] == "epochs" else "",
            "difference": claim["difference"],
            "standard_error": claim["standard_error"],
            "over": f"{min(len(claim['better']), len(claim['than']))} seeds",
            "verdict": claim["verdict"],
        }
        for claim in found["claims"]
    ]
    if spec.get("plot") == "mixes":
        claims += _mix_claims(found["cells"])
    commits, machines = ({run.get(key, "unknown") for run in runs} for key in ("commit", "machine"))
    origin = {"commit": ", ".join(sorted(commits)), "machine": "; ".join(sorted(machines))} if runs else {}
    return {
        **origin,
        "title": found["title"],
        "tables": [
            {"title": "", "head": head, "rows": rows},
            *_share_tables(spec, cells),
            *_mix_tables(found["cells"]),
        ],
        "claims": claims,
        "runs": len(runs),
        "missing": n_expected - len(runs),
        "minutes": sum(run["seconds"] + run["bilm_seconds"] for run in runs) / 60,
    }


def compare_pairs(text: str, row: str, better: Sequence[float], than: Sequence[float], over: str) -> Settings:
    """Return a claim that is decided by paired values, such as the answers of two methods to the same questions."""
    differences = [one - other for one, other in zip(better, than, strict=True)]
    error = math.nan
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
    return _claim(text, row, better, than, error, f"{len(differences):,} {over}")


def compare_runs(text: str, row: str, better: Sequence[float], than: Sequence[float]) -> Settings:
    """Return a claim that is decided by the scores of independent runs."""
    error = math.nan
    if min(len(better), len(than)) > 1:
        error = math.sqrt(statistics.variance(better) / len(better) + statistics.variance(than) / len(than))
    return _claim(text, row, better, than, error, f"{min(len(better), len(than))} seeds")


def _claim(text: str, row: str, better: Sequence[float], than: Sequence[float], error: float, over: str) -> Settings:
    difference = statistics.fmean(better) - statistics.fmean(than)
    return {
        "text": text,
        "row": row,
        "better": statistics.fmean(better),
        "than": statistics.fmean(than),
        "unit": "",
        "difference": difference,
        "standard_error": None if math.isnan(error) else error,
        "over": over,
        "verdict": judge(difference, error),
    }


def read_toml(path: Path) -> Settings:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _show_cell(cell: Settings | None) -> str:
    if cell is None:
        return "–"
    metric, n = cell["runs"][0]["metric"], len(cell["runs"])
    deviation = f" ± {cell['sd'][metric]:.2f}" if n > 1 else ""
    return f"{cell['mean'][metric]:.2f}{deviation} ({n})"


def _share_tables(spec: Settings, cells: dict[tuple[str, str, float], Settings]) -> list[Settings]:
    """Return how little data the last column needs for the score that the first one reaches with all data."""
    shares = sorted(spec.get("shares", []))
    if len(shares) < 2:
        return []
    first, last = spec["columns"][0]["name"], spec["columns"][-1]["name"]
    rows = []
    for name in (row["name"] for row in spec["rows"]):
        found = [cells.get((name, column, share)) for column in (first, last) for share in shares]
        if None in found:
            continue
        scores = [cell["mean"][cell["runs"][0]["metric"]] for cell in found]
        target, scores = scores[len(shares) - 1], scores[len(shares) :]
        needed = reach(shares, scores, target)
        rows.append([name, target, "never" if needed is None else f"{100 * needed:.2g} %"])
    head = ["task", f"{first}, all data", f"share with which “{last}” reaches it"]
    return [{"title": "How little data is enough", "head": head, "rows": rows}] if rows else []


def reach(shares: Sequence[float], scores: Sequence[float], target: float) -> float | None:
    """Return the share from which on the scores reach a target, interpolated on a logarithmic scale; None: never.

    >>> reach([0.01, 0.1, 1.0], [10.0, 20.0, 30.0], 15.0)
    0.0316...
    """
    if scores[-1] < target:
        return None
    for i in reversed(range(len(shares) - 1)):
        if scores[i] < target:
            part = (target - scores[i]) / (scores[i + 1] - scores[i])
            return float(shares[i] * (shares[i + 1] / shares[i]) ** part)
    return shares[0]


def _mix_claims(cells: Sequence[Settings]) -> list[Settings]:
    """Compare, in every run, the weight of layer 1 at the input with the largest of the other weights."""
    claims = []
    for cell in cells:
        mixes = [mix["weights"] for run in cell["runs"] for mix in run["mixes"] if mix["place"] == "input"]
        if mixes:
            first = [weights[1] for weights in mixes]
            others = [max(weights[:1] + weights[2:]) for weights in mixes]
            claims.append(compare_pairs(MIX_CLAIM, cell["row"], first, others, "seeds"))
    return claims


def _mix_tables(cells: Sequence[Settings]) -> list[Settings]:
    """Return the learned mixes as means over the seeds."""
    rows = []
    learned = [cell for cell in cells if all(max(mix["weights"]) < 1 for run in cell["runs"] for mix in run["mixes"])]
    for cell in learned:
        for mixes in zip(*(run["mixes"] for run in cell["runs"])):
            weights = [statistics.fmean(values) for values in zip(*(mix["weights"] for mix in mixes))]
            gamma = statistics.fmean(mix["gamma"] for mix in mixes)
            share = f"{100 * cell['share']:g} %"
            rows.append([cell["row"], cell["column"], share, mixes[0]["place"], *weights, gamma])
    if not rows:
        return []
    n_layers = max(len(row) for row in rows) - 5
    padded = [[*row[:-1], *[""] * (n_layers + 5 - len(row)), row[-1]] for row in rows]
    head = ["task", "column", "share", "place", *(f"layer {i}" for i in range(n_layers)), "γ"]
    return [{"title": "Learned mixes", "head": head, "rows": padded}]
