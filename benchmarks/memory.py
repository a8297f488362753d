"""Measure the largest memory of the commands that read texts of any size: it must not grow with the text.

    python -m benchmarks.memory [COMMAND …] [--lines 10000 100000]

Every command runs in a process of its own, with one thread and a tiny model. The text has sentences of five tokens and
5,000 different words; usages are those of two of the words, in every tenth line.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.common import print_header
from torchelmo import BiLM, BiLMConfig
from torchelmo.text.vocabulary import Vocabulary

COMMANDS = {
    "embed": "embed {text} --out {out}.parquet --model {model} --pretokenized --layers top",
    "usages": "analyse usages {text} --targets {targets} --out {out}.npz --model {model} --pretokenized",
    "usages (Parquet)": "analyse usages {text} --targets {targets} --out {out}.parquet --model {model} --pretokenized",
    "words": "analyse words {text} --out {out}.txt --model {model} --pretokenized --min-count 1",
    "surprisal": "surprisal {model} {text} --out {out}.tsv --pretokenized",
    "surprisal --words": "surprisal {model} {table} --words word --out {out}.tsv --pretokenized --sentence sentence",
    "minimal-pairs": "minimal-pairs {model} {pairs} --out {out}.tsv --pretokenized",
    "substitutes": "substitutes {model} {text} --targets {targets} --out {out}.jsonl --pretokenized --top 3",
}


def main() -> None:
    given = parse_arguments()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        write_model(folder / "model")
        print_header("a tiny model, one thread; the largest memory of the process")
        print(f"| command | {' | '.join(f'MB, {n:,} lines' for n in given.lines)} | seconds |")
        print("|---" * (len(given.lines) + 2) + "|", flush=True)
        for command in given.commands or COMMANDS:
            found = []
            for n_lines in given.lines:
                write_inputs(folder, n_lines)
                found.append(measure(command, folder))
            sizes = " | ".join(f"{megabytes:,.0f}" for megabytes, _ in found)
            print(f"| `{command}` | {sizes} | {', '.join(f'{seconds:.0f}' for _, seconds in found)} |", flush=True)


def measure(command: str, folder: Path) -> tuple[float, float]:
    """Return the largest memory of a command in MB, and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchelmo", *arguments(command, folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    messages = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: {messages}")
    return usage.ru_maxrss / 1024, time.perf_counter() - start


def arguments(command: str, folder: Path) -> list[str]:
    """Return the arguments of `torchelmo` for a command."""
    names = {"text": "text.txt", "table": "table.csv", "pairs": "pairs.jsonl", "targets": "targets.txt"}
    places = {key: str(folder / name) for key, name in names.items()}
    call = COMMANDS[command].format(model=folder / "model", out=folder / "out", **places)
    return [*call.split(), "--threads", "1", "--overwrite"]


def write_inputs(folder: Path, n_lines: int) -> None:
    """Write a text, a table with its words, and minimal pairs, with this many lines each."""
    with (folder / "text.txt").open("w") as text, (folder / "pairs.jsonl").open("w") as pairs:
        for i in range(n_lines):
            text.write(f"word{i % 5000} in line of {'bow' if i % 10 == 0 else 'text'}\n")
            pairs.write(
                f'{{"sentence_good": "word{i % 5000} in line", "sentence_bad": "line in", "UID": "{i % 60}"}}\n'
            )
    with (folder / "table.csv").open("w") as table:
        table.write("word,sentence\n")
        table.writelines(f"word{i % 5000},{i // 10}\n" for i in range(n_lines))
    (folder / "targets.txt").write_text("bow\nword7\n")


def write_model(folder: Path) -> None:
    """Write a model with random weights and a softmax."""
    torch.manual_seed(0)
    words = ["<S>", "</S>", "<UNK>", "in", "line", "of", "text", "bow"]
    config = BiLMConfig(
        filters=((1, 8), (2, 8)), projection_dim=8, cell_dim=16, n_layers=1, max_characters=12, softmax_words=len(words)
    )
    BiLM(config, Vocabulary(words)).save(folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"{', '.join(COMMANDS)}; default: all")
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000], help="sizes of the text")
    parser.add_argument("--folder", type=Path, help="where to write, temporarily; default: the folder of the system")
    given = parser.parse_args()
    for command in given.commands:
        if command not in COMMANDS:
            parser.error(f"expected {', '.join(COMMANDS)}, got {command!r}")
    return given


if __name__ == "__main__":
    main()
