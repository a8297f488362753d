"""The first signal asks for an orderly stop, a second Ctrl-C does not wait."""

import os
import signal
import threading

import pytest

from torchelmo.runs.signals import Stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_a_stop_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with Stop().on_signals() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGTERM)  # patient: schedulers send it more than once
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once():
    with Stop().on_signals() as stop:
        stop.asked = True
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_leave_signals_alone():
    def work():
        with Stop().on_signals() as stop:
            seen.append((stop.asked, signal.getsignal(signal.SIGINT)))

    seen, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
