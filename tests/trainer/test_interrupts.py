"""Signals: raised once, never inside a deferred block, never lost."""

import os
import signal
from contextlib import suppress

import pytest

from trainer.interrupts import Interrupted


def interrupt(signum=signal.SIGINT):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_where_it_arrives(interrupts, signum):
    with pytest.raises(Interrupted, match=signal.Signals(signum).name):
        interrupt(signum)
    assert interrupts.exit_code == 128 + signum


def test_a_deferred_block_finishes_first(interrupts):
    finished = []
    with pytest.raises(Interrupted), interrupts.deferred():
        with interrupts.deferred():
            interrupt()
        finished.append("inner")
    assert finished == ["inner"]


def test_later_signals_are_only_reported(interrupts, capsys):
    with pytest.raises(Interrupted):
        interrupt()
    interrupt(signal.SIGTERM)
    assert interrupts.exit_code == 130 and "stopping already" in capsys.readouterr().err


def test_a_swallowed_signal_is_raised_at_the_next_check(interrupts):
    interrupts.check()
    with suppress(BaseException):
        interrupt()
    with pytest.raises(Interrupted):
        interrupts.check()


def test_an_error_in_a_deferred_block_takes_precedence(interrupts):
    with pytest.raises(ValueError), interrupts.deferred():
        interrupt()
        raise ValueError
    with pytest.raises(Interrupted):
        interrupts.check()
