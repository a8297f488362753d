"""Fuzz every kind of input and print a table: `python -m fuzz [TARGET …] [--minutes M | --cases N]` in tests/.

The cases of a target run one after another in a forked process. This process watches it: if it crashes, hangs or takes
too much memory, the case is counted as a failure, and a new process continues with the next case.
"""

import argparse
import contextlib
import json
import math
import os
import select
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch

from fuzz.run import MEGABYTES, SECONDS, Failure, Target, run_target
from fuzz.targets import TARGETS

KINDS = ("exception", "crash", "hang", "memory", "silently wrong", "message too long")
PATIENCE = 4 * SECONDS  # a case that is not interrupted by its own alarm is killed after this time


def main() -> None:
    """Run all targets in turn and print a row for each."""
    given = parse_arguments()
    torch.set_num_threads(1)
    targets = [TARGETS[name] for name in given.targets or TARGETS]
    shares = sum(target.share for target in targets)
    total: Counter[str] = Counter()
    failures: list[Failure] = []
    print("| input | tried | refused | " + " | ".join(KINDS) + " |\n|---|---|---|" + "---|" * len(KINDS), flush=True)

    def watch_share(target: Target) -> tuple[Counter[str], list[Failure]]:
        count = sys.maxsize if given.minutes else max(1, math.ceil(given.cases * target.share / shares))
        seconds = 60 * given.minutes * given.workers / len(targets) if given.minutes else float("inf")
        return watch(target, given.first, count, seconds)

    with ThreadPoolExecutor(given.workers) as pool:
        for target, (counts, failed) in zip(targets, pool.map(watch_share, targets), strict=True):
            total += counts
            failures += failed
            print(row(target.name, counts), flush=True)
            for failure in failed[: given.show]:
                about = f"{failure.target}, case {failure.case}: {failure.kind}"
                print(f"{about}\n  {failure.change}\n  {failure.detail}", file=sys.stderr, flush=True)
    print(row("**all**", total), flush=True)
    raise SystemExit(1 if failures else 0)


def watch(target: Target, first: int, count: int, seconds: float) -> tuple[Counter[str], list[Failure]]:
    """Run cases in another process, and in a new one after each case that the process does not survive."""
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    end = time.monotonic() + seconds
    repeated = -1  # a case that was killed once; the machine may have been busy
    while (done := counts.total()) < count and time.monotonic() < end:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            work(target, first + done, count - done, end - time.monotonic(), writer)
        os.close(writer)
        with open(reader, "rb", buffering=0) as stream:
            problem = follow(child, stream.fileno(), counts, failures)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if problem is None and code == 0:
            break  # all cases are done, or the time is over
        case = first + counts.total()
        if problem is not None and case != repeated:
            repeated = case
            continue
        kind, detail = problem or ("crash", f"exit code {code}")
        counts[kind] += 1
        failures.append(Failure(target.name, case, kind, "repeat the case to see its change", detail))
    return counts, failures


def work(target: Target, first: int, count: int, seconds: float, writer: int) -> None:
    """Run cases in the forked process and write a line for each."""

    def report(kind: str, failure: Failure | None) -> None:
        os.write(writer, json.dumps([kind, failure]).encode() + b"\n")

    code = 1
    try:
        run_target(target, first=first, count=count, seconds=seconds, report=report)
        code = 0
    finally:
        os._exit(code)


def follow(
    child: int, stream: int, counts: Counter[str], failures: list[Failure]
) -> tuple[str, str] | None:  # the kind of failure and a detail
    """Count the results of a process until it ends. Kill it if a case hangs or takes too much memory."""
    rest = b""
    started, base = False, 0.0
    last = time.monotonic()
    while True:
        if select.select([stream], [], [], 0.5)[0]:
            data = os.read(stream, 1 << 16)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                kind, failure = json.loads(line)
                if kind == "start":
                    started, base = True, memory(child)
                    continue
                counts[kind] += 1
                if failure is not None:
                    failures.append(Failure(*failure))
            last = time.monotonic()
        problem = None
        if started and time.monotonic() - last > PATIENCE:
            problem = "hang", f"more than {PATIENCE:.0f} s, not interruptible"
        elif started and memory(child) - base > 2 * MEGABYTES:
            problem = "memory", f"more than {2 * MEGABYTES} MB"
        if problem is not None:
            os.kill(child, signal.SIGKILL)
            return problem


def memory(process: int) -> float:
    """Return the memory of a process in MB."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    return 0.0


def row(name: str, counts: Counter[str]) -> str:
    """Return the counts as a row of a Markdown table."""
    cells = [f"{counts[kind]:,}" for kind in KINDS]
    return f"| {name} | {counts.total():,} | {counts['refused']:,} | {' | '.join(cells)} |"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"Default: all of {', '.join(TARGETS)}.")
    parser.add_argument("--minutes", type=float, default=0.0, help="Run for this long.")
    parser.add_argument("--cases", type=int, default=5_000, help="Without --minutes: cases over all targets.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first case; a case can be repeated by it.")
    parser.add_argument("--workers", type=int, default=1, help="Targets that run at the same time.")
    parser.add_argument("--show", type=int, default=20, help="Failures of each target to print.")
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known: {', '.join(TARGETS)}")
    return given


if __name__ == "__main__":
    main()
