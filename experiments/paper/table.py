"""Run a table of this folder, and write its result for page.py.

    python experiments/paper/table.py table6 --out runs/paper --jobs 2

Runs with equal settings are shared by all tables: OUT/tasks holds each of them once. Finished runs are kept, and the
result is written even if some runs fail. Every finished run is recorded in results/runs.json, which is part of the
repository: a recorded run is not repeated on another machine.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import finetune
from results import HERE, read_toml, result_of_table, save_result

import torchelmo
from torchelmo.tasks.table.run import run_table

RECORDS = HERE / "results" / "runs.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the name of a table, such as table6")
    parser.add_argument("--out", type=Path, required=True, help="the folder with one folder per experiment")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; they share the cores")
    parser.add_argument("--model", default="", help="a model folder or name (default: the model in the package)")
    parser.add_argument("--rows", nargs="*", default=[], help="train these rows only")
    parser.add_argument("--finished", action="store_true", help="train nothing: only write what is finished")
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="the file of finished runs (default: %(default)s)"
    )
    given = parser.parse_args()
    choices = {"model": given.model, "rows": given.rows, "train": not given.finished}
    run(given.name, given.out, records=given.records, jobs=given.jobs, **choices)


def run(
    name: str,
    out: Path,
    *,
    records: Path,
    jobs: int = 1,
    model: str = "",
    rows: Sequence[str] = (),
    train: bool = True,
) -> None:
    """Run what is missing, and write OUT/NAME/result.json in any case."""
    path = HERE / f"{name}.toml"
    if name == "table7" and train:  # its columns name the models, so --model applies to the fine-tuning only
        finetune.run(path, out / name, out / "models", model or "english-small")
        model = ""
    settings = [f"elmo.model={json.dumps(model)}"] if model else []
    folders = {"cache": out / "cache", "models": out / "models", "runs": out / "tasks", "records": records}
    try:
        run_table(path, out / name, settings=settings, jobs=jobs, rows=rows, train=train, **folders)
    finally:
        table = out / name / "table.json"
        if table.exists():
            spec = read_toml(path)
            found = result_of_table(spec, json.loads(table.read_text(encoding="utf-8")))
            if not any("bilm" in column for column in spec["columns"]):
                found["model"] = torchelmo.load(model or None).origin
            more = out / name / "more.json"
            if more.exists():  # the perplexities of table 7
                extra = json.loads(more.read_text(encoding="utf-8"))
                found["minutes"] += extra["minutes"]
                found |= {key: [*extra[key], *found[key]] for key in ("tables", "claims")}
            save_result(out / name / "result.json", found)


if __name__ == "__main__":
    main()
