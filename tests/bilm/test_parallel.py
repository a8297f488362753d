"""Threads with a share of the cores: results in order, errors passed on, settings of other threads untouched."""

import multiprocessing
import threading
from collections.abc import Iterator

import pytest
import torch

from torchelmo.runtime import in_parallel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def report(number: int) -> tuple[int, int, bool, str]:
    return number, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name


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


@pytest.mark.parametrize(("n", "device", "cores"), [(1, "cpu", 4), (5, "cpu", 4), (2, "meta", 4), (2, "cpu", 1)])
def test_one_after_the_other_where_threads_gain_nothing(n: int, device: str, cores: int):
    torch.set_num_threads(cores)
    results = in_parallel(report, [(i,) for i in range(n)], torch.device(device))
    assert results == [(i, cores, False, threading.current_thread().name) for i in range(n)]


def test_two_at_a_time_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    assert sorted(in_parallel(lambda _: both.wait(), [(1,), (2,)], CPU)) == [0, 1]


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda a, b: a / b, [(1, 1), (1, 0)], CPU)
    assert in_parallel(lambda a, b: a / b, [(1, 1), (4, 2)], CPU) == [1.0, 2.0]


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
