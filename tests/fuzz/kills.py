"""Kill every command that writes, at random moments, and resume it: `python -m fuzz.kills [COMMAND …] [--kills N]`.

After each `kill -9` the output must not look finished, and the resumed command must end with the output of an
undisturbed run, byte for byte: nothing lost, nothing doubled, no temporary files left. Half of the kills come at a
random moment, the others just before or after a random file operation (a rename, a flush, a removal and so on), which
hits the writing of checkpoints and results. A command is started by fork from a process that has imported PyTorch, so
that kills hit its work and not the imports.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tiny_runs import MODEL, sentences
from tiny_tasks import pos_settings, write_pos, write_toml

import torchelmo
from fuzz.run import memory_folder
from torchelmo.analysis import usages, word_vectors
from torchelmo.bulk import job
from torchelmo.cli import exit as cli_exit
from torchelmo.cli import main as torchelmo_main
from torchelmo.errors import TorchelmoError


class Command(NamedTuple):
    """One command that writes `out`, and how to tell whether its output is finished."""

    name: str
    out: str
    arguments: Callable[[Path], list[str]]  # folder → arguments; the same call starts and resumes
    is_finished: Callable[[Path], bool]  # would a user, or another command, take `out` for a result?
    content: Callable[[Path], object]  # what must equal the output of an undisturbed run


def files(*names: str) -> Callable[[Path], object]:
    """Return a function that hashes the named files of an output, or the output itself."""

    def read(out: Path) -> object:
        paths = [out / name for name in names] if names else [out]
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]

    return read


def loads(out: Path) -> bool:
    """Return whether `torchelmo.load` accepts the output."""
    try:
        torchelmo.load(out) if out.exists() else None
    except TorchelmoError:
        return False
    return out.exists()


COMMANDS = [
    Command(
        "embed",
        "vectors.h5",
        lambda folder: ["embed", f"{folder}/long.txt", "--out", f"{folder}/vectors.h5", "--model", f"{folder}/model"],
        lambda out: out.exists(),
        lambda out: files()(out),
    ),
    Command(
        "embed --out DIR/",
        "shards",
        lambda folder: [
            *["embed", f"{folder}/long.txt", "--out", f"{folder}/shards/", "--model", f"{folder}/model"],
            *["--out-format", "npz", "--shards", "12", "--threads", "1"],
        ],
        lambda out: (out / "manifest.json").exists(),
        lambda out: files("manifest.json", *sorted(path.name for path in out.glob("part-*")))(out),
    ),
    Command(
        "analyse words",
        "words.txt",
        lambda folder: [
            *["analyse", "words", f"{folder}/long.txt", "--out", f"{folder}/words.txt", "--model", f"{folder}/model"],
            *["--min-count", "1"],
        ],
        lambda out: out.exists(),
        lambda out: files()(out),
    ),
    Command(
        "analyse usages",
        "usages.npz",
        lambda folder: [
            *["analyse", "usages", f"{folder}/long.txt", "--out", f"{folder}/usages.npz", "--model", f"{folder}/model"],
            *["--targets", f"{folder}/targets.txt", "--batch-tokens", "64"],
        ],
        lambda out: out.exists(),
        lambda out: files()(out),
    ),
    Command(
        "surprisal",
        "bits.tsv",
        lambda folder: ["surprisal", f"{folder}/model", f"{folder}/long.txt", "--out", f"{folder}/bits.tsv"],
        lambda out: out.exists(),
        lambda out: files()(out),
    ),
    Command(
        "minimal-pairs",
        "pairs.tsv",
        lambda folder: [
            "minimal-pairs",
            f"{folder}/model",
            f"{folder}/pairs.jsonl",
            "--each",
            "--out",
            f"{folder}/pairs.tsv",
        ],
        lambda out: out.exists(),
        lambda out: files()(out),
    ),
    Command(
        "prepare",
        "data2",
        lambda folder: ["prepare", f"{folder}/long.txt", "--out", f"{folder}/data2", "--vocab-size", "20"],
        lambda out: out.exists(),
        lambda out: files("vocab.txt", "train.tokens.npy", "train.offsets.npy", "counts.npy")(out),
    ),
    Command(
        "pretrain",
        "run",
        lambda folder: ["pretrain", f"{folder}/run.toml"],
        lambda out: False,  # `run` is a model folder after every checkpoint, by design
        lambda out: files("model.safetensors", "best/model.safetensors")(out),
    ),
    Command(
        "fine-tune",
        "tuned",
        lambda folder: [
            *["fine-tune", f"{folder}/model", f"{folder}/text.txt", "--out", f"{folder}/tuned"],
            *["--set", "steps=60", "--set", "checkpoint_every=5", "--set", "evaluate_every=20"],
            *["--set", "batch_size=4", "--set", "threads=1"],
        ],
        loads,
        lambda out: files("model.safetensors")(out),
    ),
    Command(
        "task train",
        "tagger",
        lambda folder: ["task", "train", "pos", "--config", f"{folder}/pos.toml"],
        lambda out: False,  # checked by its content: the best epoch so far is a model, by design
        lambda out: files("model.safetensors")(out),
    ),
    Command(
        "convert",
        "official",
        lambda folder: ["convert", f"{folder}/model", f"{folder}/official", "--to", "official", "--overwrite"],
        loads,
        lambda out: files("options.json", "weights.hdf5", "vocab.txt")(out),
    ),
]
RESUMES = {
    "embed",
    "analyse words",
    "analyse usages",
    "surprisal",
    "minimal-pairs",
    "pretrain",
    "fine-tune",
    "task train",
}
OVERWRITES = {"prepare"}


# What a command does to files; kills are aimed at these calls.
OPERATIONS = "replace rename fsync unlink rmdir mkdir open truncate ftruncate pwrite chmod".split()


class Moment(NamedTuple):
    """When a command is killed: after some seconds, or at a file operation."""

    seconds: float | None = None
    operation: int | None = None  # counted from 0
    after: bool = False  # the operation was done, or not yet


def main() -> None:
    """Kill each command many times and print a table."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.kills", description=__doc__)
    parser.add_argument("commands", nargs="*", help=f"Default: {', '.join(command.name for command in COMMANDS)}.")
    parser.add_argument("--kills", type=int, default=20, help="Kills for each command.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the moments.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # The texts are short, and a resumed run should find some results.
    job.COMMIT_SECONDS = cli_exit.COMMIT_SECONDS = usages.COMMIT_SECONDS = word_vectors.SAVE_SECONDS = 0.02
    word_vectors._BLOCK = 200
    kinds = ("at a file operation", "before any output", "looks finished", "lost or doubled", "leftovers")
    print(f"| command | kills | {' | '.join(kinds)} |\n|---|---|{'---|' * len(kinds)}", flush=True)
    failed = 0
    for command in COMMANDS:
        if not given.commands or command.name in given.commands:
            found = kill_many(command, given.kills, random.Random(f"{given.seed} {command.name}"))
            failed += sum(found[kind] for kind in kinds[2:])
            cells = " | ".join(str(found[kind]) for kind in kinds)
            print(f"| {command.name} | {found['kills']} | {cells} |", flush=True)
    raise SystemExit(1 if failed else 0)


def kill_many(command: Command, kills: int, rng: random.Random) -> Counter[str]:
    """Run a command and kill it several times; after each result, start again."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="torchelmo-kills-", dir=memory_folder()) as root:
        good = Path(root) / "case"  # outputs may contain the paths of their inputs, so all runs have the same
        make_inputs(good)
        run(command, good)  # imports and caches are no part of the time
        shutil.rmtree(good)
        make_inputs(good)
        start = time.monotonic()
        if run(command, good) != 0:
            log = (good / "log.txt").read_text()
            raise SystemExit(f"{command.name}: the undisturbed run failed.\n{log[-2_000:]}")
        seconds = time.monotonic() - start
        n_operations = int((good / "operations.txt").read_text())
        expected, listing = command.content(good / command.out), names(good)
        while found["kills"] < kills:
            folder = Path(root) / "case"
            shutil.rmtree(folder, ignore_errors=True)
            make_inputs(folder)
            attempts = rng.randint(1, 4)  # kills before the run may end
            while True:
                moment = Moment(seconds=rng.uniform(0.0, 1.1 * seconds))
                if rng.random() < 0.5:
                    moment = Moment(operation=rng.randrange(n_operations), after=rng.random() < 0.5)
                last = attempts == 0 or found["kills"] == kills
                attempts -= 1
                status = run(command, folder, None if last else moment)
                out = folder / command.out
                if status == 0:
                    break
                if last:
                    log = (folder / "log.txt").read_text()[-2_000:]
                    print(f"{command.name}: could not be resumed:\n{log}", file=sys.stderr)
                    break
                found["kills"] += 1
                found["at a file operation"] += moment.operation is not None
                if not out.exists() and names(folder) <= listing:
                    found["before any output"] += 1
                if command.is_finished(out) and not equal(command, out, expected):
                    found["looks finished"] += 1
                    print(f"{command.name}: {out} looks finished after a kill at {moment}", file=sys.stderr)
            if not equal(command, out, expected):
                found["lost or doubled"] += 1
                print(f"{command.name}: other result, last kill at {moment}", file=sys.stderr)
            if names(folder) != listing:
                found["leftovers"] += 1
                print(f"{command.name}: {names(folder) ^ listing}, last kill at {moment}", file=sys.stderr)
    return found


def run(command: Command, folder: Path, moment: Moment | None = None) -> int:
    """Run the command in a forked process; return its exit code, or −9 if it was killed."""
    out = folder / command.out
    arguments = command.arguments(folder)
    if command.name in RESUMES:
        arguments.append("--resume")
    elif command.name in OVERWRITES and out.exists():
        arguments.append("--overwrite")
    child = os.fork()
    if child == 0:
        with open(folder / "log.txt", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            sys.argv = ["torchelmo", *arguments]
            calls = watch_operations(moment)
            code = 1
            try:
                code = int(torchelmo_main(arguments) or 0)
            except SystemExit as exit_:
                code = int(exit_.code or 0)
            finally:
                (folder / "operations.txt").write_text(str(next(calls)))
                os._exit(code)
    if moment is not None and moment.seconds is not None:
        time.sleep(moment.seconds)
        os.kill(child, signal.SIGKILL)  # a child that has ended stays until waitpid, so its number is still its own
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def watch_operations(moment: Moment | None) -> Iterator[int]:
    """Count the file operations of this process, and kill it at one of them."""
    calls = itertools.count()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            now = next(calls) == (moment.operation if moment else None)
            if now and moment and not moment.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in OPERATIONS:
        setattr(os, name, watched(getattr(os, name)))
    return calls


def make_inputs(folder: Path) -> None:
    """Write texts, a model and configurations."""
    folder.mkdir()
    (folder / "text.txt").write_text("".join(" ".join(tokens) + "\n" for tokens in sentences(300)))
    (folder / "long.txt").write_text("".join(" ".join(tokens) + "\n" for tokens in sentences(2_000)))
    (folder / "targets.txt").write_text("\n".join(sorted({tokens[0] for tokens in sentences(300)})) + "\n")
    pairs = [{"sentence_good": " ".join(s), "sentence_bad": " ".join(s[::-1]), "UID": "order"} for s in sentences(600)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    make_model(folder / "model")
    make_data(folder / "data")
    settings = {
        "data": f"{folder}/data",
        "out": f"{folder}/run",
        "steps": 60,
        "checkpoint_every": 7,
        "evaluate_every": 20,
        "batch_size": 4,
        "unroll": 5,
        "negatives": 6,
        "threads": 1,
        "tensorboard": False,
        "model": MODEL,
        "optim": {"name": "adamw", "lr": 0.01},
    }
    write_toml(folder / "run.toml", settings)
    write_pos(folder, n=60)
    write_toml(
        folder / "pos.toml", {**pos_settings(folder, folder / "tagger", epochs=4), "threads": 1, "checkpoint_every": 3}
    )
    (folder / "log.txt").touch()
    (folder / "operations.txt").touch()


_CACHE: dict[str, Path] = {}


def make_data(folder: Path) -> None:
    """Write prepared text; made once and copied."""
    from tiny_runs import write_data

    if "data" not in _CACHE:
        _CACHE["data"] = write_data(Path(tempfile.mkdtemp(prefix="torchelmo-kills-")) / "data")
    shutil.copytree(_CACHE["data"], folder)


def make_model(folder: Path) -> None:
    """Write a model with a softmax over the words of the texts; made once and copied."""
    if "model" not in _CACHE:
        from tiny_runs import tiny_config, write_data

        from torchelmo.lm import pretrain

        root = Path(tempfile.mkdtemp(prefix="torchelmo-kills-"))
        pretrain(tiny_config(write_data(root / "data"), root / "run", steps=5))
        torchelmo.load(root / "run").save(root / "model")
        _CACHE["model"] = root / "model"
    shutil.copytree(_CACHE["model"], folder)


def equal(command: Command, out: Path, expected: object) -> bool:
    """Return whether the output equals that of the undisturbed run."""
    try:
        return command.content(out) == expected
    except OSError:
        return False


def names(folder: Path) -> set[str]:
    """Return the names in a folder and in its first level."""
    return {str(path.relative_to(folder)) for pattern in ("*", ".*") for path in folder.glob(pattern)}


if __name__ == "__main__":
    main()
