"""First-signal handlers, in a process of their own."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal
from client.signals import on_first_signal

received = []
on_first_signal((signal.SIGINT, signal.SIGTERM), received.append)
for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print(received)
"""


def test_only_the_first_signal_reaches_the_handler():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[<Signals.SIGTERM: 15>]\n", done.stderr
