"""benchmarks.recipes trains variants of a configuration for the same time and compares them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from facts import mentions
from tiny_runs import write_data

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture
def call(data, tmp_path):
    """Return a function that runs the variants in `lines` of TOML, two at a time."""

    def run(lines: str, *options: str) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "recipes.toml"
        base = ROOT / "experiments/pretrain/tiny.toml"
        config.write_text(f"base = '{base}'\nset = ['model.max_characters=8']\n{lines}")
        command = [sys.executable, "-m", "benchmarks.recipes", config, "--data", data, "--out", tmp_path / "runs"]
        return subprocess.run(
            [*map(str, command), "--minutes", "0.02", "--jobs", "2", *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_variants_are_sorted_by_perplexity_and_not_run_again(call):
    lines = "[[variants]]\nname = 'frozen'\nset = ['optim.lr=1e-9']\n[[variants]]\nname = 'usual'\n"
    first = call(lines)
    assert first.returncode == 0, first.stderr
    rows = [line.split(" | ") for line in first.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["| usual", "| frozen"]
    assert call(lines).stdout == first.stdout


@pytest.mark.slow
def test_tokens_give_every_variant_the_same_text(call):
    lines = "[[variants]]\nname = 'muon'\nset = ['optim.name=\"muon\"']\n[[variants]]\nname = 'usual'\n"
    found = call(lines, "--tokens", "20000", "--threads", "1")
    assert found.returncode == 0, found.stderr
    assert "20,000 tokens" in found.stdout
    rows = [line.split(" | ") for line in found.stdout.splitlines() if line.startswith("| ")][1:]
    assert {row[0]: row[2] for row in rows} == {"| muon": "0.02", "| usual": "0.02"}


@pytest.mark.slow
def test_a_variant_may_set_its_own_length(call):
    found = call("[[variants]]\nname = 'short'\nset = ['steps=1', 'batch_size=10', 'unroll=1000']\n")
    assert found.returncode == 0, found.stderr
    rows = [line.split(" | ") for line in found.stdout.splitlines() if line.startswith("| short")]
    assert [row[2] for row in rows] == ["0.01"]
    assert "its own length" in found.stdout


@pytest.mark.slow
def test_a_failing_variant_is_named(call):
    found = call("[[variants]]\nname = 'no words'\nset = ['init=nowhere']\n")
    assert found.returncode == 1
    assert "no words" in found.stderr
    assert "Traceback" not in found.stderr


def test_jobs_must_be_positive(call):
    found = call("[[variants]]\nname = 'usual'\n", "--jobs", "0")
    assert found.returncode == 2
    assert re.search(mentions("--jobs", 0), found.stderr.splitlines()[-1])


def test_an_unknown_variant_is_named(call):
    found = call("[[variants]]\nname = 'usual'\n", "--variant", "unusual")
    assert found.returncode == 1
    assert re.search(mentions("'unusual'", "'usual'"), found.stderr)
