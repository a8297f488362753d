"""benchmarks.shards prints what collections cost."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_costs_are_computed_from_rate_and_efficiency():
    command = [sys.executable, "-m", "benchmarks.shards", "cost", "--rate", "1000", "--efficiency", "0.5"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "| 1 M | 16.7 min | 16.7 min | 3.3 min | 20 s | 2 s |" in run.stdout
    assert "| 10 G | 115.7 days | 115.7 days | 23.1 days | 2.3 days | 5.6 h |" in run.stdout
