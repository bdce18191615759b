"""Persistent shell in a sandbox: one process per session, a new bash per command.

A command costs a fork and an exec inside, about 2 ms, instead of the start of a sandbox.
Invariant: `run` returns within its timeout plus KILL_REPLY_TIMEOUT_S and the kill itself (about 0.1 s), whatever the
command started.
"""

import base64
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from agent_server.sandboxes import shell_code
from agent_server.sandboxes.base import KILLED, NO_VARIABLES, CleanResult, CommandResult, ResourceUsage
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.network import SandboxNetwork
from agent_server.sandboxes.own_memory import unlimited_children
from agent_server.sandboxes.processes import descendants, kill, kill_started_since, namespace_pid, ticks_now
from agent_server.sandboxes.procfs import DIRECTORIES, SandboxProcfs
from agent_server.sandboxes.shell_channel import COMMAND, FILE, ShellChannel
from agent_server.sandboxes.shell_output import OutputFile, OutputFiles
from agent_server.sandboxes.watchdog import Watchdog
from client.errors import InvalidRequest, SandboxDied, SandboxFileError, SandboxLimitExceeded, SandboxStartFailed

MAX_ARGUMENT_BYTES = 120_000  # the kernel's limit for one argument is 128 KiB
LONG_COMMAND_FILE = "/tmp/.long_command"
KILL_REPLY_TIMEOUT_S = 2.0  # between the kill of a command and the shell's reply
REPLY_TIMEOUT_S = 30.0  # for requests to the shell itself


class Ended(NamedTuple):
    """How a command ended: as in CommandResult."""

    returncode: int
    seconds: float
    limit: str = ""


class PersistentShell:
    """Sandbox that runs `argv`, a program that executes a bash, which reads commands from standard input."""

    def __init__(
        self,
        argv: list[str],
        *,
        start_timeout_s: float,
        env: dict[str, str] | None = None,
        default_env: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
        cgroup: Cgroup | None = None,
    ):
        """Start the program and wait for its shell.

        `env`: of the program. `default_env`: variables of the commands where their environment does not have them.
        `limits` require a program that gives the shell its own PID namespace and file systems.
        `cgroup`: the program runs in it; closing the shell removes it. Closing also ends `network`, if it was set.
        Raises SandboxStartFailed with the program's message; a failed start leaves nothing behind.
        """
        self._cgroup = cgroup
        self._outputs = OutputFiles()
        self._startup_script = shell_code.open_startup_script(self._outputs)
        self._process = self._start_process(argv, env)
        self._channel = ShellChannel(self._process)
        self._own_pids: frozenset[int] = frozenset()
        self._watchdog: Watchdog | None = None
        self.network: SandboxNetwork | None = None
        try:
            self._channel.initialise(
                self._outputs,
                self._startup_script,
                default_env=default_env,
                oom_kill_commands_first=cgroup is not None,
            )
            nonce = self._channel.start_clean(COMMAND, "true", "/")
            if self._channel.wait(nonce, time.monotonic() + start_timeout_s) is None:
                raise SandboxStartFailed(
                    f"the sandbox did not answer within {start_timeout_s:g} s: {self._outputs.errors.message()}; "
                    "raise AGENT_SERVER_SANDBOX_START_TIMEOUT_S if the machine is slow"
                )
            self._own_pids = frozenset(process.pid for process in descendants(self.pid))
            pid_inside, self.shell_pid = self._find_shell()
            if limits:
                self._watchdog = Watchdog.start(self._open_procfs(pid_inside), limits, cgroup)
        except SandboxDied as died:
            message = self._outputs.errors.message()
            self.close()
            raise SandboxStartFailed(f"the sandbox ended at its start: {message}") from died
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Pid of the program."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Pids of the program and of the processes that it had started when its shell first answered."""
        return [self.pid, *self._own_pids]

    def run(
        self, command: str, *, cwd: str, timeout_s: float, variables: Mapping[str, str] = NO_VARIABLES
    ) -> CommandResult:
        """See Sandbox.run. Raises InvalidRequest for a NUL byte or half a surrogate pair."""
        startup, output = self._outputs.startup, self._outputs.for_command()

        def start(kind: str, text: str) -> str:
            return self._channel.start_command(kind, text, cwd, output, variables)

        try:
            ended = self._run(command, start, timeout_s, (startup, output))
        except SandboxFileError as full:  # the command is too long for an argument, and the agent has filled the disk
            return CommandResult(str(full), 1, 0.0)
        printed = startup.read_text()
        result = CommandResult(printed + output.read_text(), *ended, startup=printed)
        startup.truncate()
        output.truncate()
        return result

    def run_clean(self, command: str, *, cwd: str, timeout_s: float) -> CleanResult:
        """See Sandbox.run_clean."""
        files = answers, errors = self._outputs.answers, self._outputs.errors
        for file in files:
            file.truncate()

        def start(kind: str, text: str) -> str:
            return self._channel.start_clean(kind, text, cwd)

        ended = self._run(command, start, timeout_s, files)
        result = CleanResult(answers.read(), errors.read_text(), *ended)
        for file in files:
            file.truncate()
        return result

    def write_file(self, path: str, content: str) -> None:
        """See Sandbox.write_file. The text is sent as a here-document, which has no length limit."""
        encoded = base64.encodebytes(content.encode(errors="surrogateescape")).decode()
        errors = self._outputs.errors
        errors.truncate()
        streams = f"2>>/proc/self/fd/{errors.descriptor} <<'END'"
        script = f"{{ base64 -d >{shlex.quote(path)}; }} {streams}\n{encoded}END\n"
        with self._explain_death():
            nonce = self._channel.evaluate('"$?"', script=script)
            status = self._channel.wait(nonce, time.monotonic() + REPLY_TIMEOUT_S)
        if status is None:
            raise SandboxDied(f"the sandbox's shell did not write {path} within {REPLY_TIMEOUT_S:g} s")
        if status != 0:
            raise SandboxFileError(
                f"{path} cannot be written inside the sandbox (status {status}): {errors.message()}; "
                "free space in the sandbox, or raise AGENT_SERVER_SANDBOX_DISK_MIB"
            )

    def kill_background(self) -> None:
        """See Sandbox.kill_background."""
        kill_started_since(self.pid, 0, self._own_pids)

    def resource_usage(self) -> ResourceUsage:
        """See Sandbox.resource_usage. Zero without limits, when nothing is measured, or without the watchdog."""
        try:
            return self._watchdog.resource_usage() if self._watchdog else ResourceUsage(0.0, 0)
        except SandboxDied:
            return ResourceUsage(0.0, 0)

    def close(self) -> None:
        """See Sandbox.close. Processes that left the tree end with its PID namespace."""
        if self._process.poll() is None:
            for pid in [*(process.pid for process in descendants(self.pid)), self.pid]:
                kill(pid)
        self._process.wait()
        if self._watchdog:
            self._watchdog.close()
            self._watchdog = None
        if self.network:
            self.network.close()
            self.network = None
        if self._cgroup:
            self._cgroup.remove()
        self._channel.close()
        self._close_files()

    def _start_process(self, argv: list[str], env: dict[str, str] | None) -> subprocess.Popen[bytes]:
        stderr = self._outputs.errors.open_for_append()
        try:
            with unlimited_children():
                return subprocess.Popen(
                    self._cgroup.wrap_command(argv) if self._cgroup else argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    pass_fds=[*self._outputs.descriptors, self._startup_script],
                    env=env,
                    cwd="/",
                    bufsize=0,
                )
        except OSError as error:
            self._close_files()
            if self._cgroup:
                self._cgroup.remove()
            raise SandboxStartFailed(f"cannot start {argv[0]}: {error}; is it installed?") from error
        finally:
            os.close(stderr)

    def _close_files(self) -> None:
        """Repeatable."""
        self._outputs.close()
        if self._startup_script >= 0:
            os.close(self._startup_script)
            self._startup_script = -1

    def _run(
        self, command: str, start: Callable[[str, str], str], timeout_s: float, files: Sequence[OutputFile]
    ) -> Ended:
        """Run a command, which prints to `files`, under the sandbox's limits. `start`: takes kind and text, returns the
        nonce. Raises SandboxFileError where the command is too long for an argument and the disk is full."""
        if "\0" in command:
            raise InvalidRequest("a command cannot contain a NUL byte; write binary data with printf or base64")
        try:
            size = len(command.encode(errors="surrogateescape"))
        except UnicodeEncodeError as half:
            raise InvalidRequest(
                f"a command cannot contain half a surrogate pair ({half}); write binary data with printf or base64"
            ) from None
        kind = COMMAND
        if size > MAX_ARGUMENT_BYTES:
            self.write_file(LONG_COMMAND_FILE, command)
            kind, command = FILE, LONG_COMMAND_FILE
        with self._explain_death():
            if not self._watchdog:
                return self._run_to_end(lambda: start(kind, command), timeout_s, files)
            self._watchdog.start_command()
            ended = self._run_to_end(lambda: start(kind, command), timeout_s, files)
            limit = self._watchdog.finish_command()
            if limit == "cpu":
                raise SandboxLimitExceeded(limit)  # the sandbox was killed, although the command may have ended before
            return Ended(KILLED, ended.seconds, limit) if limit else ended

    def _run_to_end(self, start: Callable[[], str], timeout_s: float, files: Sequence[OutputFile]) -> Ended:
        """Run a command within its time and output limits."""

        def over_limit() -> bool:
            return any(file.over_limit() for file in files)

        start_ticks, started = ticks_now(), time.monotonic()
        nonce = start()
        status = self._channel.wait(nonce, started + timeout_s, stop_early=over_limit)
        limit = "output" if over_limit() else ""
        if status is None:
            limit = limit or "time"
            kill_started_since(self.pid, start_ticks, self._own_pids)
            if self._channel.wait(nonce, time.monotonic() + KILL_REPLY_TIMEOUT_S) is None:
                raise SandboxDied("the sandbox's shell does not answer after its command was killed")
        # A command that printed too much is over the limit, whether it ended before that was noticed or not.
        return Ended(KILLED if limit or status is None else status, time.monotonic() - started, limit)

    @contextmanager
    def _explain_death(self) -> Iterator[None]:
        """Turn SandboxDied into SandboxLimitExceeded where the watchdog killed the sandbox."""
        try:
            yield
        except SandboxDied:
            if self._watchdog and (limit := self._watchdog.report_death()):
                raise SandboxLimitExceeded(limit) from None
            raise

    def _find_shell(self) -> tuple[int, int]:
        """The shell's pid inside the sandbox and on the host."""
        pid_inside = self._evaluate("$$")
        for pid in self.pids:
            if namespace_pid(pid) == pid_inside:
                return pid_inside, pid
        raise SandboxStartFailed(f"the shell (pid {pid_inside} inside) is not a process that {self.pid} started")

    def _open_procfs(self, shell_pid_inside: int) -> SandboxProcfs:
        """Open the sandbox's DIRECTORIES through the shell's descriptors, since the host has no path to them."""
        first = shell_code.output_descriptor(self._outputs, self._startup_script)
        numbers = range(first, first + len(DIRECTORIES))
        opens = (f"{number}<{path}" for number, path in zip(numbers, DIRECTORIES, strict=True))
        # One of the numbers may be open: bash would move it aside, to another of them, and close that in the end.
        self._channel.execute("exec " + " ".join(f"{number}<&-" for number in numbers) + "\n")
        self._channel.execute(f"exec {' '.join(opens)}\n")
        self._evaluate("$?")  # the reply shows that the shell has executed the line before
        try:
            descriptors = [
                os.open(f"/proc/{self.shell_pid}/fd/{number}", os.O_RDONLY | os.O_DIRECTORY) for number in numbers
            ]
        except OSError as error:
            raise SandboxStartFailed(
                f"the sandbox must have {', '.join(DIRECTORIES)}, from which its limits are checked: {error}"
            ) from error
        self._channel.execute("exec " + " ".join(f"{number}<&-" for number in numbers) + "\n")
        return SandboxProcfs(shell_pid_inside, self.shell_pid, descriptors, self._outputs.descriptors)

    def _evaluate(self, expression: str) -> int:
        """Number that the shell prints for an expression."""
        nonce = self._channel.evaluate(expression)
        if (value := self._channel.wait(nonce, time.monotonic() + REPLY_TIMEOUT_S)) is None:
            raise SandboxStartFailed(f"the sandbox's shell did not answer within {REPLY_TIMEOUT_S:g} s")
        return value
