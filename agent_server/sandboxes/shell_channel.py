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
from collections.abc import Callable, Mapping
from typing import IO

from agent_server.sandboxes import shell_code
from agent_server.sandboxes.shell_output import OutputFile, OutputFiles
from client.errors import SandboxDied

POLL_S = 0.1  # between two checks of `stop_early`
COMMAND, FILE = "-c", "--"  # what bash takes the text after it for


class ShellChannel:
    """Requests to a bash that reads commands from standard input. Calls raise SandboxDied when it is gone."""

    def __init__(self, process: subprocess.Popen[bytes]):
        assert process.stdin and process.stdout
        self._requests: IO[bytes] = process.stdin
        self._replies: IO[bytes] = process.stdout
        self._unread = b""

    def initialise(
        self,
        outputs: OutputFiles,
        startup_script: int,
        *,
        default_env: Mapping[str, str],
        oom_kill_commands_first: bool,
    ) -> None:
        """Define in the shell what later requests use. `startup_script`: of shell_code.open_startup_script."""
        self.execute(shell_code.prelude(outputs, startup_script))
        for name, value in default_env.items():
            self.execute(f'[ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}\n')
        if oom_kill_commands_first:
            self.execute(shell_code.OOM_KILL_COMMANDS_FIRST)

    def start_command(self, kind: str, text: str, cwd: str, output: OutputFile, variables: Mapping[str, str]) -> str:
        """Start a bash with `text`, a COMMAND or a FILE. Returns the nonce, whose reply is the exit status.

        It prints to `output`; before the command begins, to the file of `startup`.
        """
        nonce = secrets.token_hex(8)
        assignments = (f"{name}={value}" for name, value in variables.items())
        words = [nonce, cwd, str(output.descriptor), kind, text, *assignments]
        self.execute(f"run {shlex.join(words)}\n")
        return nonce

    def start_clean(self, kind: str, text: str, cwd: str) -> str:
        """Start a bash of the server's own. Returns the nonce. It prints to the files of `answers` and `errors`."""
        nonce = secrets.token_hex(8)
        self.execute(f"clean {shlex.join([nonce, cwd, kind, text])}\n")
        return nonce

    def evaluate(self, expression: str, *, script: str = "") -> str:
        """Run `script` in the shell itself. Returns the nonce, whose reply is the value of `expression` after it."""
        nonce = secrets.token_hex(8)
        self.execute(f"{script}printf '\\n%s %s\\n' {nonce} {expression}\n")
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
