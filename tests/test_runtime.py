"""Worker threads, and what the C library does with freed memory: page faults and resident memory of a process."""

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from torchelmo import runtime
from torchelmo.runtime import in_parallel, keep_freed_memory, release_freed_memory

CPU = torch.device("cpu")


@pytest.fixture
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def report(number: int) -> tuple[int, int, bool, str]:
    return number, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name


@pytest.mark.usefixtures("_four_threads")
def test_each_thread_has_its_share_of_the_cores_and_no_gradients():
    first, second = in_parallel(report, [(1,), (2,)], CPU)
    assert first[:3] == (1, 2, False)
    assert second[:3] == (2, 2, False)
    assert {first[3], second[3]}.isdisjoint({threading.current_thread().name})
    assert torch.get_num_threads() == 4
    assert torch.is_grad_enabled()
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [4]


@pytest.mark.usefixtures("_four_threads")
@pytest.mark.parametrize(("n", "device", "cores"), [(1, "cpu", 4), (5, "cpu", 4), (2, "meta", 4), (2, "cpu", 1)])
def test_one_after_the_other_where_threads_gain_nothing(n: int, device: str, cores: int):
    torch.set_num_threads(cores)
    results = in_parallel(report, [(i,) for i in range(n)], torch.device(device))
    assert results == [(i, cores, False, threading.current_thread().name) for i in range(n)]


@pytest.mark.usefixtures("_four_threads")
def test_two_at_a_time_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    assert sorted(in_parallel(lambda _: both.wait(), [(1,), (2,)], CPU)) == [0, 1]


@pytest.mark.usefixtures("_four_threads")
def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda a, b: a / b, [(1, 1), (1, 0)], CPU)
    assert in_parallel(lambda a, b: a / b, [(1, 1), (4, 2)], CPU) == [1.0, 2.0]


@pytest.mark.usefixtures("_four_threads")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_makes_threads_of_its_own():
    in_parallel(report, [(1,), (2,)], CPU)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(len(in_parallel(report, [(1,), (2,)], CPU))))
    child.start()
    assert answers.get(timeout=60) == 2
    child.join()


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
from torchelmo.runtime import release_freed_memory
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
    assert run(GIVE_BACK, "") < 10_000_000 < 150_000_000 < run(GIVE_BACK, "release_freed_memory()")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
    release_freed_memory()


AMX = "processor\t: 0\ncpuid level\t: {}\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n\n"


def test_amx_without_a_description_of_its_tiles_is_found():
    assert runtime.hides_tiles(2 * AMX.format(28))
    assert not runtime.hides_tiles(2 * AMX.format(32))
    assert not runtime.hides_tiles(AMX.format(28).replace("amx", "avx"))
    assert not runtime.hides_tiles("flags: amx_tile\n")
    assert not runtime.hides_tiles("")


def test_where_onednn_crashes_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "_read_cpuinfo", lambda: AMX.format(28))
    for variable in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(variable, raising=False)
    why = runtime.why_onednn_crashes.__wrapped__
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in why()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert why() == ""


ZEN = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ZEN, True),
        (ZEN.replace("AuthenticAMD", "GenuineIntel"), False),
        (ZEN.replace(" avx512f", ""), False),
        ("", False),
    ],
)
def test_onednn_is_preferred_where_mkl_does_not_use_avx_512(
    cpuinfo: str, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtime, "_read_cpuinfo", lambda: cpuinfo)
    assert runtime.prefers_onednn.__wrapped__() is expected


@pytest.fixture
def _zen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "prefers_onednn", lambda: True)
    monkeypatch.setattr(runtime, "_onednn_is_exact", lambda: True)


@pytest.mark.usefixtures("_zen")
def test_onednn_products_end_with_their_last_user():
    first, second = runtime.onednn_products(CPU), runtime.onednn_products(CPU)
    assert first.__enter__()
    assert second.__enter__()
    assert torch.get_float32_matmul_precision() == "medium"
    first.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "medium"
    second.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("_zen")
def test_onednn_products_are_for_training_on_a_cpu_and_leave_a_setting_of_the_user():
    with runtime.onednn_products(torch.device("cuda")) as used:
        assert not used
    torch.set_float32_matmul_precision("high")
    try:
        with runtime.onednn_products(CPU) as used:
            assert not used
            assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_onednn_products_are_used_only_if_they_round_as_float32(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "prefers_onednn", lambda: True)
    a, b = torch.randn(2, 70, 70, generator=torch.Generator().manual_seed(0))
    with runtime.onednn_products(CPU) as used:
        assert used is runtime._onednn_is_exact()
        torch.testing.assert_close(torch.mm(a, b).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(runtime, "_onednn_is_exact", lambda: False)
    with runtime.onednn_products(CPU) as used:
        assert not used


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (300, 700)])
def test_transpose_is_a_contiguous_copy(shape: tuple[int, int]):
    matrix = torch.randn(shape)
    copy = runtime.transpose(matrix)
    assert copy.is_contiguous()
    torch.testing.assert_close(copy, matrix.T, rtol=0, atol=0)
