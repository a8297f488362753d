"""Run a table of this folder, and write its result for page.py.

    python experiments/paper/table.py table6 --out runs/paper --jobs 2

Runs with equal settings are shared by all tables: OUT/tasks holds each of them once. Finished runs are kept,
and the result is written even if some runs fail.
"""

import argparse
import json
from pathlib import Path

import finetune
from results import HERE, commits_of_runs, read_toml, result_of_table, save_result

from torchelmo.tasks.table.run import run_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the name of a table, such as table6")
    parser.add_argument("--out", type=Path, required=True, help="the folder with one folder per experiment")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; they share the cores")
    parser.add_argument("--model", default="", help="a model folder or name (default: the model in the package)")
    parser.add_argument("--rows", nargs="*", default=[], help="train these rows only")
    parser.add_argument("--finished", action="store_true", help="train nothing: only write what is finished")
    given = parser.parse_args()
    run(given.name, given.out, jobs=given.jobs, model=given.model, rows=given.rows, train=not given.finished)


def run(name: str, out: Path, *, jobs: int = 1, model: str = "", rows: list[str] = (), train: bool = True) -> None:
    """Run what is missing, and write OUT/NAME/result.json in any case."""
    path = HERE / f"{name}.toml"
    if name == "table7" and train:  # its columns name the models, so --model applies to the fine-tuning only
        finetune.run(path, out / name, out / "models", model or "english-small")
        model = ""
    settings = [f"elmo.model={json.dumps(model)}"] if model else []
    folders = {"cache": out / "cache", "models": out / "models", "runs": out / "tasks"}
    try:
        run_table(path, out / name, settings=settings, jobs=jobs, rows=rows, train=train, **folders)
    finally:
        table = out / name / "table.json"
        if table.exists():
            written = json.loads(table.read_text(encoding="utf-8"))
            found = result_of_table(read_toml(path), written)
            trained = [run["folder"] for cell in written["cells"] for run in cell["runs"]]
            if trained:
                found["commit"] = commits_of_runs(out / "commits.json", trained, trained_now=train)
            more = out / name / "more.json"
            if more.exists():  # the perplexities of table 7
                extra = json.loads(more.read_text(encoding="utf-8"))
                found["minutes"] += extra["minutes"]
                found |= {key: [*extra[key], *found[key]] for key in ("tables", "claims")}
            save_result(out / name / "result.json", found)


if __name__ == "__main__":
    main()
