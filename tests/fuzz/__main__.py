"""Fuzz every kind of input and print a table: `python -m fuzz [TARGET …] [--minutes M | --cases N]` in tests/.

Each target runs in a process of its own, so that a crash of the interpreter is counted and the rest goes on.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fuzz.run import Failure, run_target
from fuzz.targets import TARGETS

KINDS = ("exception", "crash", "hang", "memory", "silently wrong", "message too long")
CHUNK = 200  # cases in one process: a crash costs the rest of a chunk


def main() -> None:
    """Run all targets in turn until the time or the number of cases is used up."""
    given = parse_arguments()
    if given.worker:
        outcome = run_target(TARGETS[given.targets[0]], first=given.first, count=given.cases)
        print(json.dumps([outcome.counts, outcome.failures]))
        return
    names = given.targets or list(TARGETS)
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    failures: list[Failure] = []
    end = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    first = given.first
    while time.monotonic() < end and (given.minutes or first < given.first + given.cases):
        for name in names:
            count = CHUNK if given.minutes else min(CHUNK, given.first + given.cases - first)
            found, failed = run_chunk(name, first, count)
            counts[name].update(found)
            failures += failed
            if time.monotonic() > end:
                break
        first += CHUNK
    print(table(counts))
    for failure in failures[: given.show]:
        print(f"\n{failure.target}, case {failure.case}: {failure.kind}\n  {failure.change}\n  {failure.detail}")
    raise SystemExit(1 if failures else 0)


def run_chunk(name: str, first: int, count: int) -> tuple[Counter[str], list[Failure]]:
    """Run some cases in another process; if it dies, the case that killed it is a failure of its own."""
    command = [sys.executable, "-m", "fuzz", name, "--worker", "--first", str(first), "--cases", str(count)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    if done.returncode == 0:
        counts, failures = json.loads(done.stdout.splitlines()[-1])
        return Counter(counts), [Failure(*failure) for failure in failures]
    if count == 1:
        return Counter(crash=1), [Failure(name, first, "crash", f"exit code {done.returncode}", done.stderr[-500:])]
    half = count // 2
    one, other = run_chunk(name, first, half), run_chunk(name, first + half, count - half)
    return one[0] + other[0], one[1] + other[1]


def table(counts: dict[str, Counter[str]]) -> str:
    """Return the counts as a Markdown table."""
    lines = ["| input | tried | refused | " + " | ".join(KINDS) + " |", "|---|---|---|" + "---|" * len(KINDS)]
    for name, found in [*counts.items(), ("**all**", sum(counts.values(), Counter()))]:
        cells = [f"{found[kind]:,}" for kind in KINDS]
        lines.append(f"| {name} | {sum(found.values()):,} | {found['refused']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"Default: all of {', '.join(TARGETS)}.")
    parser.add_argument("--minutes", type=float, default=0.0, help="Run for this long.")
    parser.add_argument("--cases", type=int, default=200, help="Without --minutes: cases per target.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first case; a case can be repeated by it.")
    parser.add_argument("--show", type=int, default=20, help="Failures to print.")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known: {', '.join(TARGETS)}")
    return given


if __name__ == "__main__":
    main()
