"""Kill workers, parents and Ray actors of a run over many shards: `python -m fuzz.shards [--kills N] [--shards N]`.

A collection is embedded once without disturbance. Then it is embedded again, while processes of the run are killed with
`kill -9` at random moments: workers and the parent of `torchelmo embed --workers 2`, which is started again, and in the
last part of the run actors of `torchelmo.bulk.ray.embed_files`. In the end every file must have the same bytes as those
of the undisturbed run: nothing lost, nothing doubled, no temporary files left.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import torchelmo.bulk
from torchelmo import BiLM, BiLMConfig

COMMAND = "from torchelmo.cli import main; main()"
RAY = """
import sys, ray
from torchelmo.bulk.ray import embed_files
ray.init(num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
text, out, model, size = sys.argv[1:]
embed_files(text, out, model=model, pretokenized=True, shard_size=int(size))
"""
WORDS = "the old archer took a bow and an arrow from Zürich to 東京 while nobody was looking at her hands".split()


def run(folder: Path, n_shards: int, kills: dict[str, int], seed: int = 0, n_words: int = 400) -> dict[str, int]:
    """Embed a collection undisturbed and disturbed, and compare the files.

    Args:
        folder: An empty folder to work in.
        n_shards: The number of shards.
        kills: How many processes of each kind to kill: "worker", "parent" and "actor".
        seed: The seed of everything random.
        n_words: Words of a shard, which determine how long it takes.

    Returns:
        The number of shards, rows, starts and kills.

    Raises:
        AssertionError: The files differ.
    """
    chance = random.Random(seed)
    text, model, size = write_inputs(folder, n_shards, n_words, chance)
    options = ["--pretokenized", "--model", str(model), "--shard-size", str(size)]
    subprocess.run(command(text, folder / "whole", *options, "--threads", "1"), check=True, capture_output=True)
    out, done = folder / "out", Counter[str]()
    local = {kind: kills.get(kind, 0) for kind in ("worker", "parent")}
    disturb(command(text, out, *options, "--workers", "2", "--threads", "2"), out, local, chance, done, n_shards)
    compare(out, folder / "whole")
    if kills.get("actor"):
        for path in sorted(out.glob("part-*"))[n_shards // 2 :]:  # the last half is left to Ray
            path.unlink()
        (out / "manifest.json").unlink(missing_ok=True)
        arguments = [sys.executable, "-c", RAY, str(text), str(out), str(model), str(size)]
        disturb(arguments, out, {"actor": kills["actor"]}, chance, done, n_shards)
        compare(out, folder / "whole")
    with torchelmo.bulk.open(out, check=True) as collection:
        assert len(collection) == text.read_bytes().count(b"\n")
        return {"shards": len(list(out.glob("part-*"))), "rows": len(collection), **done}


def compare(out: Path, whole: Path) -> None:
    """Check that two folders hold the same files with the same bytes."""
    found, expected = files(out), files(whole)
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    different = [name for name in found if found[name] != expected[name]]
    assert not different, different


def write_inputs(folder: Path, n_shards: int, n_words: int, chance: random.Random) -> tuple[Path, Path, int]:
    """Write a text and a small model; return their paths and the size of a shard in bytes."""
    lines = [
        " ".join(f"{chance.choice(WORDS)}{chance.choice(['', chance.randrange(1000)])}" for _ in range(20))
        for _ in range(n_shards * n_words // 20)
    ]
    text = folder / "text.txt"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    torch.manual_seed(0)
    config = BiLMConfig(filters=((1, 8), (2, 16), (3, 32)), projection_dim=64, cell_dim=256, n_layers=2)
    BiLM(config).save(folder / "model")
    return text, folder / "model", -(-text.stat().st_size // n_shards)


def command(text: Path, out: Path, *options: str) -> list[str]:
    """Return the command that embeds the text."""
    return [sys.executable, "-c", COMMAND, "embed", str(text), "--out", f"{out}/", *options]


def disturb(
    arguments: list[str], out: Path, kills: dict[str, int], chance: random.Random, done: Counter[str], n_shards: int
) -> None:
    """Run a command, kill its processes at random moments, and start it again until nothing is left to kill."""
    left = [kind for kind, number in kills.items() for _ in range(number)]
    chance.shuffle(left)
    process = start(arguments, done)
    try:
        while left:
            before = count(out)
            target = before + chance.randrange(0, 4)
            while process.poll() is None and count(out) < target:
                time.sleep(0.02)
            time.sleep(chance.random() * 0.3)
            if process.poll() is not None or count(out) >= n_shards:
                # It finished before all kills: remove some files, as if they had been lost, and start again.
                finish_process(process)
                for path in chance.sample(sorted(out.glob("part-*")), min(n_shards // 4, 40)):
                    path.unlink()
                process = start(arguments, done)
                continue
            victims = [process.pid] if left[-1] == "parent" else find_children(process.pid, left[-1])
            if not victims:
                continue
            os.kill(chance.choice(victims), signal.SIGKILL)
            done[f"{left.pop()}s killed"] += 1
            if process.poll() is not None or victims == [process.pid]:
                process.communicate()
                process = start(arguments, done)
        finish_process(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    finish(arguments, done)


def start(arguments: list[str], done: Counter[str]) -> "subprocess.Popen[bytes]":
    """Start a command."""
    done["starts"] += 1
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish_process(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a command, which must be a success."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


def finish(arguments: list[str], done: Counter[str]) -> None:
    """Run a command to its end."""
    finish_process(start(arguments, done))


def count(out: Path) -> int:
    """Return the number of complete shards."""
    return len(list(out.glob("part-*")))


def find_children(process: int, kind: str) -> list[int]:
    """Return the workers or actors that a process has started, directly or not."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
    mark = b"torchelmo.bulk.workers" if kind == "worker" else b"ray::ShardRunner"
    found = []
    for candidate, name in names.items():
        ancestor = candidate
        while ancestor in parents and ancestor != process:
            ancestor = parents[ancestor]
        if ancestor == process and mark in name:
            found.append(candidate)
    return sorted(found)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, except the plan and the manifest, which name the paths of the inputs."""
    names = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in names
        if path.name not in ("plan.json", "manifest.json")
    }


def main() -> None:
    """Read the arguments, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=60, help="a third each for workers, parents and Ray actors")
    parser.add_argument("--shards", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    third = -(-given.kills // 3)
    folder = Path(tempfile.mkdtemp(prefix="torchelmo-shards-"))
    start_time = time.time()
    try:
        result = run(folder, given.shards, {"worker": third, "parent": third, "actor": third}, given.seed)
    finally:
        shutil.rmtree(folder)
    for name, number in sorted(result.items()):
        print(f"{name:16}{number:8,}")
    print(f"All files are equal to those of an undisturbed run. {time.time() - start_time:,.0f} s")


if __name__ == "__main__":
    main()
