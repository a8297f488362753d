"""Progress: a bar on a terminal, log lines elsewhere."""

import contextlib
import logging
import os
import pty
import re

import pytest
from facts import mentions

from torchelmo.progress import describe, progress


def numbers(text):
    return re.findall(r"\d+(?:[.,:]\d+)*", text)


def test_without_a_terminal_it_logs_now_and_then_and_at_the_end(caplog):
    caplog.set_level(logging.INFO, logger="torchelmo.progress")
    with progress("embed", total=10, done=4, unit="lines", every=0.0) as advance:
        advance(1)
        advance(5)
    first, second, last = (record.getMessage() for record in caplog.records)
    assert all(re.search(mentions("embed", "lines"), line) for line in (first, second, last))
    assert {"5", "10"} <= set(numbers(first))
    assert numbers(second).count("10") >= 2
    assert {"6", "0.0"} <= set(numbers(last))  # those of this run


def test_between_the_lines_it_is_silent(caplog):
    caplog.set_level(logging.INFO, logger="torchelmo.progress")
    with progress("embed", every=1e9) as advance:
        for _ in range(100):
            advance(1)
    assert len(caplog.records) == 1


def test_a_failed_job_has_no_last_line(caplog):
    caplog.set_level(logging.INFO, logger="torchelmo.progress")

    def fail() -> None:
        with progress("embed", every=1e9) as advance:
            advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert caplog.records == []


def test_the_time_left_is_told_where_it_can_be_known():
    known, endless, still = (
        describe(50, 150, "lines", 2.0),
        describe(5000, None, "sentences", 1234.5),
        describe(0, 10, "lines", 0.0),
    )
    assert re.search(mentions("lines", "2/s"), known)
    assert sorted(numbers(known)) == ["0:00:50", "150", "2", "50"]
    assert re.search(mentions("sentences", "1,234/s"), endless)
    assert sorted(numbers(endless)) == ["1,234", "5,000"]
    assert re.search(mentions("lines", "0/s"), still)
    assert sorted(numbers(still)) == ["0", "0", "10"]


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    terminal, side = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with os.fdopen(side, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with progress("embed", total=7, unit="lines") as advance:
            for _ in range(7):
                advance(1)
    shown = ""
    with contextlib.suppress(OSError):  # how a terminal says that there is no more
        while data := os.read(terminal, 10_000):
            shown += data.decode()
    os.close(terminal)
    assert "embed" in shown
    assert "7/7" in shown
    assert "lines" in shown
