"""What the C library does with freed memory, seen from outside: page faults and resident memory of a process."""

import subprocess
import sys

import pytest

from torchelmo.runtime import give_back_freed_memory, keep_freed_memory

only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")

KEEP = """
import resource, torch
from torchelmo.runtime import keep_freed_memory
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for i in range(16):
    before = faults() if i == 12 else before if i else 0
    torch.ones(10_000_000).mul_(2)
print(faults() - before)
"""

GIVE_BACK = """
import torch
from torchelmo.runtime import give_back_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
blocks = [torch.ones(25_000) for _ in range(2000)]
del blocks[:-1]  # the last one, at the top of the heap, holds the others below it
before = resident()
{call}
print(before - resident())
"""


def run(script: str, call: str) -> int:
    command = [sys.executable, "-c", script.format(call=call)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@only_linux
def test_freed_memory_is_used_again():
    """Page faults of the last four of sixteen times that a block of 40 MB is needed."""
    kept = run(KEEP, "assert keep_freed_memory()")
    assert kept < 1000 < run(KEEP, "")


@only_linux
def test_freed_memory_goes_back():
    """Of 200 MB that were freed."""
    assert run(GIVE_BACK, "") < 10_000_000 < 150_000_000 < run(GIVE_BACK, "give_back_freed_memory()")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
    give_back_freed_memory()
