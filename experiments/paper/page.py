"""Write the page that compares the claims of the paper with the results of the experiments in this folder.

    python experiments/paper/page.py                       from the results in experiments/paper/results
    python experiments/paper/page.py --runs runs/paper     take over new results and plots first

Every number comes from a result.json (results.py). An experiment that was not run, or not to its end, is shown as such.
"""

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import finetune
from results import HERE, MIX_CLAIM, Settings, read_toml

ROOT = HERE.parents[1]
RESULTS = HERE / "results"
ORDER = [
    *("table1", "table2", "table3", "table4", "table5", "table6", "table7", "figure1", "figure2", "epochs"),
    *("taglm", "ablations", "oov", "gamma"),
]
NOT_RUN = "not run yet"
INTRODUCTION = """# The paper, claim by claim

Each row is a claim of [Peters et al. (2018)](https://aclanthology.org/N18-1202/), tested with `english-small`, the model
in the package, on small public data sets (see [Task results](task-results.md)). The biLM was trained for hours on one
machine instead of weeks on three GPUs, the task models are small, and some data sets are samples: compare differences,
not scores. The end of each section names the version of the model.

"Holds" and "does not hold" mean that the difference is more than twice its standard error, over the seeds or over the
test words. Everything else is not decided. Scores are of dev data, with their standard deviation and, in parentheses,
the number of seeds.

[Reproduce the tables](../how-to/reproduce-the-tables.md) says how to run an experiment.
`python experiments/paper/page.py` writes this page from the files in `experiments/paper/results`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="the folder with one folder per experiment, such as runs/paper")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/explanation/paper.md", help="the page to write")
    given = parser.parse_args()
    if given.runs is not None:
        take_over(given.runs, RESULTS, given.out.parent)
    given.out.write_text(write_page(RESULTS, given.out.parent), encoding="utf-8")


def take_over(runs: Path, results: Path, images: Path) -> None:
    """Copy the results and the plots of experiments that were run."""
    results.mkdir(exist_ok=True)
    for name in ORDER:
        if (runs / name / "result.json").exists():
            shutil.copyfile(runs / name / "result.json", results / f"{name}.json")
            if (runs / name / "table.png").exists():
                shutil.copyfile(runs / name / "table.png", images / f"paper-{name}.png")


def write_page(results: Path, images: Path) -> str:
    """Return the page in Markdown."""
    specs = {name: read_toml(HERE / f"{name}.toml") for name in ORDER}
    found: dict[str, Settings] = {
        name: json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name in ORDER
        if (results / f"{name}.json").exists()
    }
    claims = [line for name in ORDER for line in claim_lines(name, specs[name], found.get(name))]
    complete = [name for name in found if not found[name]["missing"]]
    partial = [name for name in found if found[name]["missing"]]
    missing = [name for name in ORDER if name not in found]
    head = ["claim", "task", "in the paper", "here", "difference", "verdict", "experiment"]
    lines = [INTRODUCTION, "## Claims", "", count_verdicts(claims), ""]
    lines += [f"{len(complete)} of {len(ORDER)} experiments are complete.", ""]
    lines += [f"Partly run: {', '.join(partial)}.", ""] if partial else []
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    lines += markdown_table(head, claims)
    for name in ORDER:
        lines += experiment_lines(name, specs[name], found.get(name), images)
    return "\n".join(lines).rstrip() + "\n"


def claim_lines(name: str, spec: Settings, result: Settings | None) -> list[list[str]]:
    """Return a line for every claim and row of an experiment, also for those without a result."""
    decided = {(claim["text"], claim["row"]): claim for claim in (result or {}).get("claims", [])}
    papers = {row["name"]: row.get("paper", "") for row in spec["rows"]}
    expected = [
        (claim["text"], row, claim.get("paper") or papers[row])
        for claim in spec.get("claims", [])
        for row in claim.get("rows") or papers
    ]
    # Claims that no column of a table decides.
    more = {"table7": (finetune.CLAIM, "falls on every text"), "figure2": (MIX_CLAIM, "layer 1 is favored")}
    if name in more:
        text, paper = more[name]
        expected = [*((text, row, paper) for row in papers), *expected]
    lines = []
    for text, row, paper in expected:
        claim = decided.get((text, row))
        numbers = ["–", "–", NOT_RUN]
        if claim is not None:
            here = f"{number(claim['better'])} against {number(claim['than'])} {claim['unit']}".rstrip()
            error = claim["standard_error"]
            difference = f"{claim['difference']:+.2f}" + ("" if error is None else f" ± {error:.2f}")
            numbers = [here, f"{difference} ({claim['over']})", claim["verdict"]]
        lines.append([text, row, paper, *numbers, name])
    return lines


def experiment_lines(name: str, spec: Settings, result: Settings | None, images: Path) -> list[str]:
    """Return the section of an experiment."""
    lines = ["", f"## {spec['title']}", "", *description(HERE / f"{name}.toml"), ""]
    lines += [f"`make -f experiments/Makefile paper-{name}`", ""]
    if result is None:
        return [*lines, "Not run yet."]
    for table in result["tables"]:
        lines += [f"### {table['title']}", ""] if table["title"] else []
        lines += [*markdown_table(table["head"], [[show(cell) for cell in row] for row in table["rows"]]), ""]
    if (images / f"paper-{name}.png").exists():
        lines += [f"![{spec['title']}](paper-{name}.png)", ""]
    runs = f"{result['runs']} task runs" if result["runs"] or result["missing"] else "No task runs"
    runs += f", {result['missing']} more are not finished" if result["missing"] else ""
    model = f"Model: {result['model']}. " if "model" in result else ""
    where = f"{model}Commit {result['commit']}, {result['machine']}."
    return [
        *lines,
        f"{runs}; {result['minutes']:.0f} minutes of wall-clock time with one thread, shared runs included. {where}",
    ]


def description(path: Path) -> list[str]:
    """Return the comment at the top of a TOML file, which describes reductions, without the command."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").removeprefix(" ")
        if not text.startswith("  make"):
            lines.append(text)
    return "\n".join(lines).replace("\n\n\n", "\n\n").strip().split("\n")


def count_verdicts(claims: list[list[str]]) -> str:
    verdicts = [line[5] for line in claims]
    hold, fail, waiting = (verdicts.count(name) for name in ("holds", "does not hold", NOT_RUN))
    rest = len(verdicts) - hold - fail - waiting
    return (
        f"{len(verdicts)} comparisons: {hold} hold, {fail} do not hold, {rest} are not decided, {waiting} were not run."
    )


def markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def show(cell: Any) -> str:
    return number(cell) if isinstance(cell, float) else str(cell)


def number(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
