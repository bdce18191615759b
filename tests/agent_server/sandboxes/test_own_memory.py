"""The bound on a process's own memory, and its peak, in processes of their own."""

import subprocess
import sys

from tests.agent_server.conftest import ROOT

ALLOCATE = """
import os, subprocess
from agent_server.sandboxes import own_memory

MIB = 2**20
shared = bytearray(os.urandom(MIB)) * 200
pid = os.fork()
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
start = own_memory.read_status("VmRSS")
own_memory.limit_growth(100 * MIB)
first = bytearray(b"x") * (60 * MIB)
del first
peak = own_memory.read_status("VmHWM") - start
assert 55 * MIB < peak < 75 * MIB, peak
assert own_memory.read_status("VmRSS") - start < 10 * MIB, "and the memory itself is free again"
try:
    bytearray(b"x") * (120 * MIB)
except MemoryError:
    pass
else:
    raise AssertionError("over the bound")
shell = ["bash", "-c", "ulimit -Sd"]
assert subprocess.check_output(shell, text=True).strip() != "unlimited"
with own_memory.unlimited_children():
    print(subprocess.check_output(shell, text=True).strip())
assert subprocess.check_output(shell, text=True).strip() != "unlimited"
"""


def test_a_process_is_bounded_and_measured_beyond_what_it_shares_and_its_children_are_not():
    ran = subprocess.run([sys.executable, "-c", ALLOCATE], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "unlimited\n"), ran.stderr
