"""Line protocol with the shell of a sandbox, on its standard input and output.

A request is shell code with a random nonce. Its reply is the line `NONCE NUMBER` on standard output, which commands do
not inherit. So no command can forge a reply or keep the channel open.
Invariant: no call waits past its deadline.
"""

import os
import secrets
import select
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import IO

from client.errors import SandboxDied

FILE_LIMIT_BYTES = 4 * 2**30  # RLIMIT_FSIZE: bound of the output file between two checks of its size
POLL_S = 0.1  # between two checks of `stop_early`

# $1 nonce, $2 directory, $3 command. The command's bash has the output file (descriptor 3) as stdout and stderr, and no
# access to the channel. The shell's own messages ("Killed") are not part of the output. Where the image has setsid, the
# command gets its own process group: the shell's group is the worker's, because PID namespaces do not bound groups, and
# `kill 0` would reach the worker.
PRELUDE = f"""
ulimit -c 0 -f {FILE_LIMIT_BYTES // 1024}
exec 3>&2 2>/dev/null
setsid=$(type -P setsid)
run() {{
  ( [ -z "$oom_first" ] || echo 1000 >/proc/self/oom_score_adj
    cd -- "$2" && exec $setsid bash -c "$3" ) >&3 2>&3 3>&- </dev/null
  printf '%s %s\\n' "$1" "$?"
}}
"""
# Makes commands the kernel's first choice when a cgroup's memory is used up. Else it can be Apptainer's own process.
OOM_KILL_COMMANDS_FIRST = "oom_first=yes\n"


class ShellChannel:
    """Requests to a bash that reads commands from standard input. Calls raise SandboxDied when it is gone."""

    def __init__(self, process: subprocess.Popen[bytes]):
        assert process.stdin and process.stdout
        self._requests: IO[bytes] = process.stdin
        self._replies: IO[bytes] = process.stdout
        self._unread = b""

    def initialise(self, *, oom_kill_commands_first: bool) -> None:
        """Define in the shell what later requests use."""
        self.execute(PRELUDE + (OOM_KILL_COMMANDS_FIRST if oom_kill_commands_first else ""))

    def start_command(self, command: str, cwd: str) -> str:
        """Start a command in a new bash. Returns the nonce, whose reply is the exit status."""
        nonce = secrets.token_hex(8)
        self.execute(f"run {nonce} {shlex.quote(cwd)} {shlex.quote(command)}\n")
        return nonce

    def evaluate(self, expression: str, *, script: str = "") -> str:
        """Run `script` in the shell itself. Returns the nonce, whose reply is the value of `expression` after it."""
        nonce = secrets.token_hex(8)
        self.execute(f"{script}printf '%s %s\\n' {nonce} {expression}\n")
        return nonce

    def execute(self, script: str) -> None:
        """Run `script` in the shell itself, without a reply."""
        try:
            pending = memoryview(script.encode(errors="surrogateescape"))
            while pending:
                pending = pending[self._requests.write(pending) :]
        except BrokenPipeError:
            raise SandboxDied("the sandbox's shell is gone") from None

    def wait(self, nonce: str, deadline: float, *, stop_early: Callable[[], bool] | None = None) -> int | None:
        """Wait for a reply. Returns None at the deadline (`time.monotonic()`) or when `stop_early` returns true."""
        marker = nonce.encode()
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                if line.startswith(marker):
                    return int(line.split()[1])
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (stop_early and stop_early()):
                return None
            timeout = min(remaining, POLL_S) if stop_early else remaining
            readable, _, _ = select.select([self._replies], [], [], timeout)
            if readable:
                chunk = os.read(self._replies.fileno(), 65536)
                if not chunk:
                    raise SandboxDied("the sandbox's shell ended")
                self._unread += chunk

    def close(self) -> None:
        """Close both pipes; repeatable."""
        self._requests.close()
        self._replies.close()
