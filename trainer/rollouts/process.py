"""One client process a session: spawned cheaply into a process group of its own, ended whole, reaped, its files removed.

Invariant: after `close()` nothing of it is left: no process of its group, no zombie, no file. SIGTERM to a client means
that its session is discarded; the same signal comes from the kernel when the trainer itself dies.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_BYTES = 4000
POLL_S = 0.02
LAUNCH = '[ "$PPID" = "$1" ] || exit 143; exec /bin/bash -lc "$2"'


@dataclass(frozen=True, slots=True)
class Session:
    """One attempt at one sample. `session_id` is also its key at the gateway, so it is not to be guessed."""

    session_id: str
    group_id: str
    mode: str  # "train" | "eval"
    run_id: str = ""  # a name space of our own on a server that several trainers use


@dataclass(frozen=True, slots=True)
class ClientExit:
    """How a client ended. `exit_code` is negative for a signal; `output` is its output JSON, None where it wrote none
    or nothing readable; `log` is the end of what it printed."""

    exit_code: int
    output: dict | None
    log: str


class ClientProcess:
    """A running client. `fileno()` turns readable when it has ended, so that one selector waits for hundreds of them."""

    def __init__(self, session: Session, command: str, base_url: str, io_root: Path, env: Mapping[str, str]):
        """Start `command` as `/bin/bash -lc command`. Files go to a new folder in `io_root`. Raises OSError."""
        self.session = session
        self._io_dir = io_root / session.session_id
        self._io_dir.mkdir(mode=0o700)
        self._pidfd = -1
        try:
            self._start(command, base_url, env)
        except BaseException:
            shutil.rmtree(self._io_dir, ignore_errors=True)
            raise

    def _start(self, command: str, base_url: str, env: Mapping[str, str]) -> None:
        input_json = self._io_dir / "input.json"
        input_json.write_text(
            json.dumps(
                {"messages": [], "metadata": {"session_id": self.session.session_id, "run_id": self.session.run_id}}
            )
        )
        with open(self._io_dir / "client.log", "wb") as log:
            # setpriv asks the kernel for SIGTERM when the trainer is gone, sh looks whether it is gone already; both exec, so
            # this stays one process. Python's own way (preexec_fn) would copy the page tables of a trainer of many gigabytes.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "sh", "-c", LAUNCH, "client", str(os.getpid()), command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **env,
                    "RELAX_INPUT_JSON": str(input_json),
                    "RELAX_OUTPUT_JSON": str(self._io_dir / "output.json"),
                    "RELAX_SESSION_IO_DIR": str(self._io_dir),
                    "RELAX_BASE_URL": base_url,
                    "RELAX_SESSION_ID": self.session.session_id,
                    "RELAX_ROLLOUT_MODE": self.session.mode,
                    "RELAX_GROUP_ID": self.session.group_id,
                },
            )
        self._pidfd = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        return self._pidfd

    def terminate(self) -> None:
        """Ask the client and its children to discard the session."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with the children that left its process group while their parents still live."""
        for pid in _descendants(self._process.pid):
            _send(os.kill, pid, signal.SIGKILL)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, signum: int) -> None:
        _send(os.killpg, self._process.pid, signum)

    def close(self, wait_until: float = 0.0) -> ClientExit:
        """End what is left of the group, reap it, read its output, remove its files. Call it once, and last.

        `wait_until` (time.monotonic): how long the group may take to end by itself. After `terminate()` it needs that: the
        client may be gone before its children, who clean up as well (a login profile's programs hold locks).
        """
        while time.monotonic() < wait_until and _group_lives(self._process.pid):
            time.sleep(POLL_S)
        self.kill()  # before reaping: until then the group's number is certainly still ours
        exit_code = self._process.wait()
        os.close(self._pidfd)
        output, log = self._read_output(), self._read_log()
        shutil.rmtree(self._io_dir, ignore_errors=True)
        return ClientExit(exit_code, output, log)

    def _read_output(self) -> dict | None:
        try:
            output = json.loads((self._io_dir / "output.json").read_bytes())
        except (OSError, ValueError):
            return None
        return output if isinstance(output, dict) else None

    def _read_log(self) -> str:
        try:
            return (self._io_dir / "client.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it ended meanwhile
    return children + [grandchild for child in children for grandchild in _descendants(child)]


def _group_lives(pgid: int) -> bool:
    """True while a process of the group runs; one that has ended and waits to be reaped does not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it ended meanwhile
        if int(group) == pgid and state not in "ZX":
            return True
    return False


def _send(kill: Callable[[int, int], None], pid: int, signum: int) -> None:
    try:
        kill(pid, signum)
    except ProcessLookupError:
        pass  # it ended meanwhile
