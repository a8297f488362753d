"""The writer thread."""

import threading

import pytest

from torchelmo.bulk.job import in_background


def test_items_are_written_in_order_by_another_thread():
    written = []
    with in_background(lambda item: written.append((item, threading.current_thread().name)), waiting=2) as put:
        for item in range(50):
            put(item)
    assert written == [(item, "writer") for item in range(50)]


def test_an_error_in_the_thread_stops_the_producer():
    written = []

    def write(item: int) -> None:
        if item == 3:
            raise OSError("full")
        written.append(item)

    def produce() -> None:
        with in_background(write, waiting=1) as put:
            for item in range(10_000):
                put(item)
            pytest.fail("nobody noticed")

    with pytest.raises(OSError, match="full"):
        produce()
    assert written == [0, 1, 2]


def test_an_error_on_the_last_item_is_not_lost():
    def write(item: int) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"), in_background(write) as put:
        put(1)


def test_when_the_producer_fails_what_it_had_put_is_written():
    before = threading.active_count()
    written: list[int] = []

    def produce() -> None:
        with in_background(written.append) as put:
            for item in range(20):
                put(item)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        produce()
    assert written == list(range(20))
    assert threading.active_count() == before
