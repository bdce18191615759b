"""Client processes, one per session: spawn, terminate, reap, read the output, remove the files.

Invariant: after `close()` nothing of a client is left: no process of its group, no zombie, no file. SIGTERM asks a
client to cancel its session. The kernel sends the same signal when the trainer dies.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.wire import ERROR_FILE

LOG_TAIL_BYTES = 4000
MAX_ERROR_BYTES = 256 * 1024
POLL_S = 0.02
# The parent may have died before setpriv armed its signal.
LAUNCH_SCRIPT = '[ "$PPID" = "$1" ] || exit 143; exec /bin/bash -lc "$2"'


@dataclass(frozen=True, slots=True)
class ClientSession:
    """One try at one sample. `session_id` is also the API key at the gateway, so it must be unguessable."""

    session_id: str
    group_id: str
    mode: str  # "train" | "eval"
    run_id: str = ""  # name space on an agent server that several trainers use


class ErrorRecord(BaseModel):
    """A client's `error.json`: boundary, stable code and message of the failure; `field` names the wrong input."""

    model_config = ConfigDict(frozen=True, strict=True)

    boundary: Annotated[str, Field(min_length=1, max_length=64)]
    code: Annotated[str, Field(min_length=1, max_length=64)]
    message: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class ClientExit:
    """How a client ended.

    `exit_code` is negative for a signal. `output` is the output JSON and `error` the error file; None where the client
    wrote none or it is malformed. `log` is the tail of stdout and stderr.
    """

    exit_code: int
    output: dict | None
    log: str
    error: ErrorRecord | None = None


class ClientProcess:
    """A running client. `fileno()` turns readable when it ends, so one selector waits for hundreds of clients."""

    def __init__(self, session: ClientSession, command: str, base_url: str, io_root: Path, env: Mapping[str, str]):
        """Start `command` as `/bin/bash -lc command`. Its files go to a new folder in `io_root`. Raises OSError."""
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
        metadata = {"session_id": self.session.session_id, "run_id": self.session.run_id}
        input_json = self._io_dir / "input.json"
        input_json.write_text(json.dumps({"messages": [], "metadata": metadata}))
        with open(self._io_dir / "client.log", "wb") as log:
            # setpriv asks the kernel for SIGTERM when the trainer dies, sh checks that it has not died yet. Both exec,
            # so this stays one process. preexec_fn would copy the page tables of a trainer of many gigabytes.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "sh", "-c", LAUNCH_SCRIPT, "client", str(os.getpid()), command],
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
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:  # no descriptor is left
            self.kill()
            self._process.wait()
            raise

    def fileno(self) -> int:
        return self._pidfd

    def terminate(self) -> None:
        """Send SIGTERM to the client and its children: the session is discarded."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group, and to descendants outside it whose parents still live."""
        for pid in _descendants(self._process.pid):
            _send(os.kill, pid, signal.SIGKILL)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, signum: int) -> None:
        _send(os.killpg, self._process.pid, signum)

    def close(self, wait_until: float = 0.0) -> ClientExit:
        """Kill what is left of the group, reap it, read its output, remove its files. Call it once, and last.

        The group may end by itself until `wait_until` (time.monotonic). After `terminate()` it needs that time: the
        client may end before its children, which clean up as well (a login profile's programs hold locks).
        """
        while time.monotonic() < wait_until and _group_lives(self._process.pid):
            time.sleep(POLL_S)
        self.kill()  # before reaping: until then the kernel cannot reuse the group's number
        exit_code = self._process.wait()
        os.close(self._pidfd)
        ended = ClientExit(exit_code, self._read_output(), self._read_log(), self._read_error())
        shutil.rmtree(self._io_dir, ignore_errors=True)
        return ended

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

    def _read_error(self) -> ErrorRecord | None:
        try:
            # A pipe or a link of that name must neither block the trainer nor lead it elsewhere.
            descriptor = os.open(self._io_dir / ERROR_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                content = file.read(MAX_ERROR_BYTES + 1)
            return ErrorRecord.model_validate_json(content) if len(content) <= MAX_ERROR_BYTES else None
        except (OSError, ValidationError):
            return None


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has ended since
    return children + [grandchild for child in children for grandchild in _descendants(child)]


def _group_lives(pgid: int) -> bool:
    """True while a process of the group runs. Zombies do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended since
        if int(group) == pgid and state not in "ZX":
            return True
    return False


def _send(kill: Callable[[int, int], None], pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):  # it has ended since
        kill(pid, signum)
