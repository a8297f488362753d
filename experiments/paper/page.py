"""Write the page that compares the claims of the paper with the results of the experiments in this folder.

    python experiments/paper/page.py runs/paper --out docs/explanation/paper.md

Every number comes from `table.json` and `table.md`, which `torchelmo task table` writes. An experiment that was not run
yet is listed as missing.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from torchelmo.runtime import processor_name

HERE = Path(__file__).parent
INTRODUCTION = """# The paper, claim by claim

Each row is a claim of [Peters et al. (2018)](https://aclanthology.org/N18-1202/), tested with the model in the package
on small public data sets (see [Task results](task-results.md)). "Holds" means that the difference in favor of the claim
is more than twice its standard error over the seeds. `make -f experiments/Makefile paper` runs all experiments, and
`python experiments/paper/page.py runs/paper` writes this page.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder with one folder per experiment")
    parser.add_argument("--out", type=Path, default=Path("docs/explanation/paper.md"), help="the page to write")
    given = parser.parse_args()
    names = sorted(path.stem for path in HERE.glob("*.toml") if not path.stem.startswith("bilm-"))
    given.out.write_text(write_page(given.runs, names, given.out.parent), encoding="utf-8")


def write_page(runs: Path, names: list[str], images: Path) -> str:
    """Return the page in Markdown; plots are copied to the folder `images`."""
    found = {name: read_json(runs / name / "table.json") for name in names if (runs / name / "table.json").exists()}
    claims = [line for name, result in found.items() for line in claim_lines(name, result)]
    lines = [
        INTRODUCTION,
        "| claim | task | in the paper | here | difference | verdict | experiment |",
        "|" + "---|" * 7,
    ]
    where = f"Machine: {processor_name()}, {os.cpu_count()} cores. Commit {commit()}."
    lines += [*claims, "", counts(found), "", where, ""]
    for name in found:
        _, _, body = (runs / name / "table.md").read_text(encoding="utf-8").partition("\n")
        lines += [f"## {found[name]['title']}", "", f"`make -f experiments/Makefile paper-{name}`"]
        lines += [body.replace("\n## ", "\n### ").rstrip(), ""]
        if (runs / name / "table.png").exists():
            shutil.copyfile(runs / name / "table.png", images / f"paper-{name}.png")
            lines += [f"![{found[name]['title']}](paper-{name}.png)", ""]
    missing = [name for name in names if name not in found]
    if missing:
        lines += [f"Not run yet: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def claim_lines(name: str, result: dict[str, Any]) -> list[str]:
    lines = []
    for claim in result["claims"]:
        better, than = (sum(claim[key]) / len(claim[key]) for key in ("better", "than"))
        unit = " epochs" if claim["measure"] == "epochs" else ""
        error = claim["standard_error"]
        difference = f"{claim['difference']:+.2f}" + ("" if error is None else f" ± {error:.2f}")
        cells = [claim["text"], claim["row"], claim["paper"], f"{better:.2f} against {than:.2f}{unit}", difference]
        lines.append(f"| {' | '.join([*cells, claim['verdict'], name])} |")
    return lines


def counts(found: dict[str, Any]) -> str:
    verdicts = [claim["verdict"] for result in found.values() for claim in result["claims"]]
    hold, fail = verdicts.count("holds"), verdicts.count("does not hold")
    return (
        f"{len(verdicts)} comparisons: {hold} hold, {fail} do not hold, {len(verdicts) - hold - fail} are not decided."
    )


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    return run.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
