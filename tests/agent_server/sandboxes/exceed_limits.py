"""Small sandbox limits, and shell commands that exceed them.

Each command ends by itself, so that a watchdog that fails costs a test, not the machine.
"""

from agent_server.sandboxes.limits import Limits

MIB = 2**20
LIMITS = Limits(memory_bytes=200 * MIB, processes=50, disk_bytes=60 * MIB, cpu_s=1000.0)
MEMORY_HOG = (
    "timeout 20 python3 -c 'import time; "
    "a = [bytearray(5 << 20) for n in range(200) if not time.sleep(0.02)]; time.sleep(20)'"
)
# Doubles ten times, each child in its own session: 1,024 processes if they are not stopped.
FORK_BOMB = (
    "timeout 20 python3 -c 'import os, time; [os.fork() or os.setsid() for n in range(10)]; "
    "end = time.time() + 12; [0 for n in iter(time.time, 0) if n > end and exit()]'"
)
DISK_FILLER = (
    "timeout 20 sh -c 'for n in $(seq 50); do head -c 5M /dev/zero > {}/filler.$n; sleep 0.02; done; sleep 10'"
)
CPU_BURNER = "timeout 30 sh -c 'while :; do :; done'"
