import subprocess
import sys

import pytest

from torchelmo.train.memory import keep_freed_memory

SCRIPT = """
import resource, torch
from torchelmo.train.memory import keep_freed_memory
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for i in range(16):
    before = faults() if i == 12 else before if i else 0
    torch.ones(10_000_000).mul_(2)
print(faults() - before)
"""


def page_faults(call: str) -> int:
    """Of the last four of sixteen times that a block of 40 MB is needed."""
    run = [sys.executable, "-c", SCRIPT.format(call=call)]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_memory_is_used_again():
    kept = page_faults("assert keep_freed_memory()")
    assert kept < 1000 < page_faults("")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
