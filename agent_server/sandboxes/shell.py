"""A persistent shell inside any sandbox program: one process for a session, one fresh bash a command.

Two channels, and neither can be held open against us. Commands' output goes to a file in memory that the sandbox
inherits as its standard error (no path, so /proc inside names none of the host), so it is read by position and never
waited on; the end of a command is one line on a pipe that commands do not inherit.
Invariant: `run` returns within its time limit plus a moment, whatever the command started.
"""

import base64
import os
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_server.sandboxes.base import CommandResult, ResourceUsage
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.processes import descendants, kill, kill_started_since, namespace_pid, ticks_now
from agent_server.sandboxes.procfs import DIRECTORIES, SandboxProcfs
from agent_server.sandboxes.watchdog import Watchdog
from client.errors import InvalidRequest, SandboxDied, SandboxLimitExceeded, SandboxStartFailed

OUTPUT_LIMIT_BYTES = 16 * 2**20  # what one command may print before it is ended
FILE_LIMIT_BYTES = 4 * 2**30  # RLIMIT_FSIZE: the output file cannot outgrow this between two looks
LONGEST_ARGUMENT_BYTES = 120_000  # the kernel's limit for one argument is 128 KiB
WATCH_S = 0.1
KILL_GRACE_S = 2.0
ANSWER_S = 30.0  # for what the shell does itself
KILLED = 128 + signal.SIGKILL

# What the kernel kills where a cgroup's memory is used up: of many small processes the largest is Apptainer's own.
KILL_COMMANDS_FIRST = "killed_first=yes\n"
# $1 nonce, $2 directory, $3 command. The command's bash has the output file (3) as stdout and stderr, and no control
# pipe; the shell's own remarks ("Killed") are not the command's output. Where the image has setsid, the command gets a process
# group of its own: the shell's is the worker's, as a PID namespace does not bound groups, and `kill 0` would reach us.
PRELUDE = f"""
ulimit -c 0 -f {FILE_LIMIT_BYTES // 1024}
exec 3>&2 2>/dev/null
apart=$(type -P setsid)
run() {{ ( [ -z "$killed_first" ] || echo 1000 >/proc/self/oom_score_adj; cd -- "$2" && exec $apart bash -c "$3" ) >&3 2>&3 3>&- </dev/null; printf '%s %s\\n' "$1" "$?"; }}
"""


class PersistentShell:
    """Starts `argv` (a program that ends in a bash reading commands from standard input) and runs commands in it."""

    def __init__(
        self, argv: list[str], *, start_timeout_s: float, env: dict[str, str] | None = None,
        limits: Limits | None = None, cgroup: Cgroup | None = None,
    ):  # fmt: skip
        """`limits` need a program that gives the shell a PID namespace and file systems of its own. The program runs in
        `cgroup`, which ends with it. Raises SandboxStartFailed with what the program said; nothing of a partial start is left."""
        self._cgroup = cgroup
        self._output = open(os.memfd_create("output"), "w+b", buffering=0)
        # O_APPEND, so that after a truncation between commands late writers continue at the end, not in a hole.
        append = os.open(f"/proc/self/fd/{self._output.fileno()}", os.O_WRONLY | os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                cgroup.entering(argv) if cgroup else argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=append,
                env=env,
                cwd="/",
                bufsize=0,
            )
        except OSError as cannot:
            self._output.close()
            self._remove_cgroup()
            raise SandboxStartFailed(f"cannot start {argv[0]}: {cannot}; is it installed?") from cannot
        finally:
            os.close(append)
        self._control = b""
        self._spare: frozenset[int] = frozenset()
        self._watchdog: Watchdog | None = None
        try:
            self._send(PRELUDE + (KILL_COMMANDS_FIRST if cgroup else ""))
            self._begin("true", "/", nonce := secrets.token_hex(8))
            if self._await_status(nonce, time.monotonic() + start_timeout_s) is None:
                raise SandboxStartFailed(f"the sandbox did not answer within {start_timeout_s:g} s: {self._said()}")
            self._spare = frozenset(process.pid for process in descendants(self.pid))
            number, self.shell_pid = self._find_shell()
            if limits:
                self._watchdog = Watchdog(self._look_inside(number), limits, cgroup)
        except SandboxDied as died:
            said = self._said()
            self.close()
            raise SandboxStartFailed(f"the sandbox ended at its start: {said}") from died
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Of the program and what it had started when the shell first answered."""
        return [self.pid, *self._spare]

    def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        """See Sandbox.run. Raises InvalidRequest for a NUL byte, SandboxDied when the shell is gone."""
        if "\0" in command:
            raise InvalidRequest("a command cannot contain a NUL byte; write binary data with printf or base64")
        if len(command.encode(errors="replace")) > LONGEST_ARGUMENT_BYTES:
            self.write_file("/tmp/.long_command", command)
            command = "exec bash /tmp/.long_command"
        return self._run(command, cwd, timeout_s)

    def write_file(self, path: str, content: str) -> None:
        """See Sandbox.write_file. Text goes in by here-document, which no argument limit bounds. Raises SandboxDied."""
        encoded = base64.encodebytes(content.encode(errors="surrogateescape")).decode()
        nonce, target = secrets.token_hex(8), shlex.quote(path)
        with self._death_explained():
            self._send(f"base64 -d > {target} 2>&3 <<'END'\n{encoded}END\nprintf '%s %s\\n' {nonce} \"$?\"\n")
            status = self._await_status(nonce, time.monotonic() + ANSWER_S)
        if status != 0:
            raise SandboxDied(f"could not write {path} inside the sandbox (status {status}): {self._said()}")

    def kill_background(self) -> None:
        """See Sandbox.kill_background."""
        kill_started_since(self.pid, 0, self._spare)

    def resource_usage(self) -> ResourceUsage:
        """See Sandbox.used. Nothing without limits, as nobody looks then, and nothing when the watchdog has died."""
        try:
            return self._watchdog.resource_usage() if self._watchdog else ResourceUsage(0.0, 0)
        except SandboxDied:
            return ResourceUsage(0.0, 0)

    def close(self) -> None:
        """End the whole tree and reap our child. Its descendants die with its PID namespace."""
        if self._process.poll() is None:
            for pid in [*(process.pid for process in descendants(self.pid)), self.pid]:
                kill(pid)
        self._process.wait()
        if self._watchdog:
            self._watchdog.close()
            self._watchdog = None
        self._remove_cgroup()
        self._process.stdin.close()
        self._process.stdout.close()
        self._output.close()

    def _remove_cgroup(self) -> None:
        if self._cgroup:
            self._cgroup.remove()

    def _run(self, command: str, cwd: str, timeout_s: float) -> CommandResult:
        with self._death_explained():
            if self._watchdog:
                self._watchdog.command_begins()
            result = self._run_unwatched(command, cwd, timeout_s)
            if self._watchdog and (limit := self._watchdog.command_ended()):
                return CommandResult(result.output, KILLED, result.seconds, limit)
            return result

    def _run_unwatched(self, command: str, cwd: str, timeout_s: float) -> CommandResult:
        os.ftruncate(self._output.fileno(), 0)
        since, started = ticks_now(), time.monotonic()
        nonce = secrets.token_hex(8)
        self._begin(command, cwd, nonce)
        status = self._await_status(nonce, started + timeout_s, watch_output=True)
        limit = ""
        if status is None:
            limit = "output" if self._output_size() > OUTPUT_LIMIT_BYTES else "time"
            kill_started_since(self.pid, since, self._spare)
            if self._await_status(nonce, time.monotonic() + KILL_GRACE_S) is None:
                raise SandboxDied("the sandbox's shell does not answer after its command was killed")
            status = KILLED
        return CommandResult(self._read_output(), status, time.monotonic() - started, limit)

    @contextmanager
    def _death_explained(self) -> Iterator[None]:
        """Raises SandboxLimitExceeded where the sandbox died because the watchdog ended it."""
        try:
            yield
        except SandboxDied:
            if self._watchdog and (limit := self._watchdog.ended_by()):
                raise SandboxLimitExceeded(limit) from None
            raise

    def _find_shell(self) -> tuple[int, int]:
        """The shell's pid inside and here."""
        number = self._ask("$$")
        for pid in self.pids:
            if namespace_pid(pid) == number:
                return number, pid
        raise SandboxStartFailed(f"the shell (pid {number} inside) is not among the processes that {self.pid} started")

    def _look_inside(self, shell: int) -> SandboxProcfs:
        """Open what the shell opens, by its descriptors: they lead to where no path of ours does."""
        numbers = range(7, 7 + len(DIRECTORIES))
        self._send(
            "exec " + " ".join(f"{number}<{path}" for number, path in zip(numbers, DIRECTORIES, strict=True)) + "\n"
        )
        self._ask("$?")
        try:
            descriptors = [
                os.open(f"/proc/{self.shell_pid}/fd/{number}", os.O_RDONLY | os.O_DIRECTORY) for number in numbers
            ]
        except OSError as cannot:
            raise SandboxStartFailed(
                f"the sandbox lacks one of {', '.join(DIRECTORIES)}, which its limits are read from: {cannot}"
            ) from cannot
        self._send("exec " + " ".join(f"{number}<&-" for number in numbers) + "\n")
        return SandboxProcfs(shell, self.shell_pid, descriptors)

    def _ask(self, number: str) -> int:
        """What the shell says of itself."""
        self._send(f"printf '%s %s\\n' {(nonce := secrets.token_hex(8))} {number}\n")
        if (answer := self._await_status(nonce, time.monotonic() + ANSWER_S)) is None:
            raise SandboxStartFailed(f"the sandbox's shell did not say its {number} within {ANSWER_S:g} s")
        return answer

    def _begin(self, command: str, cwd: str, nonce: str) -> None:
        self._send(f"run {nonce} {shlex.quote(cwd)} {shlex.quote(command)}\n")

    def _send(self, script: str) -> None:
        try:
            pending = memoryview(script.encode(errors="surrogateescape"))
            while pending:
                pending = pending[self._process.stdin.write(pending) :]
        except BrokenPipeError:
            raise SandboxDied("the sandbox's shell is gone") from None

    def _await_status(self, nonce: str, deadline: float, *, watch_output: bool = False) -> int | None:
        """The command's exit status, or None when the deadline or (if watched) the output limit was passed."""
        marker = nonce.encode()
        while True:
            *lines, self._control = self._control.split(b"\n")
            for line in lines:
                if line.startswith(marker):
                    return int(line.split()[1])
            left = deadline - time.monotonic()
            if left <= 0 or (watch_output and self._output_size() > OUTPUT_LIMIT_BYTES):
                return None
            ready, _, _ = select.select([self._process.stdout], [], [], min(left, WATCH_S if watch_output else left))
            if ready:
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise SandboxDied("the sandbox's shell ended")
                self._control += chunk

    def _output_size(self) -> int:
        return os.fstat(self._output.fileno()).st_size

    def _read_output(self) -> str:
        """At most the limit: of a longer output the first and the last half, with a line between that says so."""
        size, half = self._output_size(), OUTPUT_LIMIT_BYTES // 2
        if size <= OUTPUT_LIMIT_BYTES:
            return os.pread(self._output.fileno(), size, 0).decode(errors="replace")
        head = os.pread(self._output.fileno(), half, 0).decode(errors="replace")
        tail = os.pread(self._output.fileno(), half, size - half).decode(errors="replace")
        return f"{head}\n[{size - 2 * half} bytes left out]\n{tail}"

    def _said(self) -> str:
        size = self._output_size()
        return (
            os.pread(self._output.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip()
            or "(no message)"
        )
