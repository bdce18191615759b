"""The display: whole lines in a file, one redrawn line on a terminal."""

import io

from trainer.display import Display
from trainer.rollouts.manager import RolloutProgress


def test_the_display_prints_whole_lines_to_a_file(monkeypatch):
    monkeypatch.setattr("trainer.display.PLAIN_EVERY_S", 0.0)
    out = io.StringIO()
    with Display(out) as display:
        display.phase("step 1/2: rollouts")
        display.progress(RolloutProgress(waiting=3, running=2, done=2, total=7, refills=1, rewards=(1.0, 0.0)))
        display.message("a line that stays")
    progress, message = out.getvalue().splitlines()
    assert "step 1/2: rollouts" in progress
    assert "3 waiting, 2 running, 2/7 done, 1 refilled | mean reward so far 0.50" in progress
    assert message == "a line that stays"


def test_the_display_redraws_one_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with Display(out) as display:
        display.phase("step 1/2: rollouts")
        display.progress(RolloutProgress(waiting=0, running=2, done=0, total=2, refills=0, rewards=()))
        display.message("a line that stays")
    assert "2 running, 0/2 done" in out.getvalue() and "a line that stays" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")  # nothing of the redrawn line is left
