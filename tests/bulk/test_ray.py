"""Ray on a real local cluster: two actors, and one that is killed."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import torchelmo.bulk
from torchelmo import Elmo
from torchelmo.bulk import embed_files
from torchelmo.bulk import ray as bulk_ray

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("ray")]
TEXTS = [f"I took {number} bows and an arrow." for number in range(40)]


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs and a small object store, which start in seconds."""
    before = dict(os.environ)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_DEDUP_LOGS": "0"}
    ray.init(
        num_cpus=2,
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in TEXTS))
    return path


def test_a_dataset_gets_vectors_of_fixed_size(cluster, bilm_folder):
    data = ray.data.from_items([{"id": number, "text": text} for number, text in enumerate(TEXTS)])
    options = {"layers": "top", "batch_size": 8, "cpus_per_actor": 0.5, "actors": 1}  # every actor imports PyTorch
    result = bulk_ray.embed_dataset(data, model=str(bilm_folder), **options)
    rows = sorted(result.take_all(), key=lambda row: row["id"])
    assert [row["text"] for row in rows] == TEXTS
    expected = Elmo(bilm_folder).embed(TEXTS, layers="top", pool="mean")
    np.testing.assert_allclose(np.stack([row["vector"] for row in rows]), np.stack(expected), atol=1e-6)


def test_actors_write_the_files_of_one_process(cluster, text, tmp_path, bilm_folder):
    options = {"model": str(bilm_folder), "layers": "top", "shard_size": 100}
    whole, out = tmp_path / "whole", tmp_path / "out"
    embed_files(text, whole, threads=1, **options)
    n_killed = []

    def kill_one_actor():
        """As soon as there is a first shard."""
        while not list(out.glob("part-*")):
            time.sleep(0.02)
        for folder in (path for path in os.scandir("/proc") if path.name.isdecimal()):
            try:
                with open(f"{folder.path}/cmdline", "rb") as stream:
                    is_ours = stream.read().startswith(b"ray::ShardRunner") and owner(folder.name) == os.getpid()
            except OSError:
                continue
            if is_ours:
                os.kill(int(folder.name), signal.SIGKILL)
                n_killed.append(folder.name)
                return

    killer = threading.Thread(target=kill_one_actor, daemon=True)
    killer.start()
    result = bulk_ray.embed_files(text, out, **options)
    killer.join(10)
    assert len(n_killed) == 1
    assert result.n_done == result.n_shards > 5
    parts = {path.name: path.read_bytes() for path in out.glob("part-*")}
    assert parts == {path.name: path.read_bytes() for path in whole.glob("part-*")}
    with torchelmo.bulk.open(out, check=True) as collection:
        assert len(collection) == len(TEXTS)
    assert bulk_ray.embed_files(text, out, **options).already_complete


def owner(process):
    """The process that started the local cluster: the grandparent of an actor, by way of the raylet."""
    for _ in range(2):
        with open(f"/proc/{process}/stat", encoding="utf-8") as stream:
            process = stream.read().rpartition(")")[2].split()[1]
    return int(process)
