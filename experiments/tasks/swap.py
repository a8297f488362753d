"""Score trained task models again with another biLM, for example the same one in int8. Prints a table.

python experiments/tasks/swap.py runs/int8/runs/ner-w-nut-2017/float32 runs/english-int8 data/tasks/ner_wnut17/dev.conll
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from torchelmo import tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder with one trained task for each seed")
    parser.add_argument("bilm", type=Path, help="the folder of the other biLM")
    parser.add_argument("data", type=Path, help="labeled data")
    given = parser.parse_args()
    folders = sorted(given.runs.glob("seed-*"), key=lambda folder: int(folder.name.removeprefix("seed-")))
    if not folders:
        raise SystemExit(f"{given.runs}: expected folders named seed-1, seed-2, …, found none.")
    if not (given.bilm / "config.json").is_file():
        raise SystemExit(f"{given.bilm}: expected the folder of a biLM, found no config.json in it.")
    differences = []
    print("| run | own biLM | the other | difference |\n|---|---|---|---|")
    for folder in folders:
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(shutil.copytree(folder, Path(temporary) / "task", ignore=shutil.ignore_patterns("checkpoints")))
            shutil.rmtree(copy / "bilm")
            shutil.copytree(given.bilm, copy / "bilm")
            own, other = score(folder, given.data), score(copy, given.data)
        differences.append(other - own)
        print(f"| {folder.name} | {own:.2f} | {other:.2f} | {other - own:+.2f} |", flush=True)
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    error = spread / len(differences) ** 0.5
    print(f"mean difference {statistics.fmean(differences):+.2f}, standard deviation {spread:.2f}, error {error:.2f}")


def score(folder: Path, data: Path) -> float:
    task = tasks.load(folder)
    return task.evaluate(data).scores[task.task.metric]


if __name__ == "__main__":
    main()
