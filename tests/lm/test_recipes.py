"""benchmarks.recipes: variants of a recipe, each for the same time, several at once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from facts import mentions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(data, tmp_path):
    """Run the variants in `lines` of TOML, two at once."""

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
def test_the_best_comes_first_and_nothing_runs_twice(call):
    lines = "[[variants]]\nname = 'frozen'\nset = ['optim.lr=1e-9']\n[[variants]]\nname = 'usual'\n"
    first = call(lines)
    assert first.returncode == 0, first.stderr
    rows = [line.split(" | ") for line in first.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["| usual", "| frozen"]
    assert call(lines).stdout == first.stdout


@pytest.mark.slow
def test_a_variant_that_cannot_run_is_named(call):
    found = call("[[variants]]\nname = 'no words'\nset = ['init=nowhere']\n")
    assert found.returncode == 1
    assert "no words" in found.stderr
    assert "Traceback" not in found.stderr


def test_no_jobs_is_a_wrong_call(call):
    found = call("[[variants]]\nname = 'usual'\n", "--jobs", "0")
    assert found.returncode == 2
    assert re.search(mentions("--jobs", 0), found.stderr.splitlines()[-1])


def test_an_unknown_variant(call):
    found = call("[[variants]]\nname = 'usual'\n", "--variant", "unusual")
    assert found.returncode == 1
    assert re.search(mentions("'unusual'", "'usual'"), found.stderr)
