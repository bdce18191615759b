"""One scripted session of the demo rows, end to end: an own agent server on a free port, real sandboxes, real grading.

Invariant: when `run_session` ends, in whatever way, every process it started has ended and every file is removed. A
process or loop device that remains is a fault. The caller must be a subreaper, so that every process stays below
it.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import requests

from agent_server.sandboxes.loop_devices import find_unconfigured
from agent_server.sandboxes.processes import descendants, kill, reap_orphans
from agent_server.tasks.catalog import Catalog
from client.api import AgentServerClient
from client.conformance.model import serving_model
from client.errors import StackError
from client.http_session import http_session
from client.wire import SessionRequest, Status

ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S, SESSION_TIMEOUT_S, STOP_TIMEOUT_S, EXIT_TIMEOUT_S = 120.0, 180.0, 60.0, 5.0
BUILD_DEMO = "bash setup/demo/image.sh .venv/bin/python ${SWE_RL_CACHE:-.cache}/demo as root"
SEE_ABOVE = "see the FAILs and warnings above, then the server's messages in this line"


class SessionFault(Exception):
    """The session failed. `remedy` is the action for the user."""

    def __init__(self, found: str, remedy: str):
        super().__init__(found)
        self.remedy = remedy


def run_session(demo: Path) -> str:
    """Run a session of the first training row, with a model that undoes the row's bug. Returns a summary of the
    successful session. Raises SessionFault."""
    try:
        catalog = Catalog(demo / "tasks")
        row, _, task = catalog.get_row("train", catalog.ids("train")[0])
    except StackError as error:
        raise SessionFault(f"the demo's rows cannot be read: {error}", BUILD_DEMO) from error
    fix = f"git apply -R <<'END'\n{row['patch'].rstrip()}\nEND"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swe-rl-check-") as folder, serving_model("127.0.0.1") as model:
        server, url, log = _start(Path(folder), demo)
        try:
            _await_ready(server, url, log)
            name = f"check-{uuid.uuid4().hex}"
            model_session = model.add_session(name, released=True, commands=(fix,))
            client = AgentServerClient(url, outage_s=10.0)
            request = SessionRequest(
                session_id=name,
                group_id=name,
                mode="train",
                base_url=model_session.base_url,
                api_key=name,
                task_id=task.task_id,
            )
            view = client.wait(client.create(request), timeout_s=SESSION_TIMEOUT_S)
        except (StackError, TimeoutError) as error:
            raise SessionFault(f"{error}; the server's log ends with: {_tail(log)}", SEE_ABOVE) from error
        finally:
            remaining = _stop(server)
    if view.status is not Status.COMPLETED:
        raise SessionFault(f"the session is {view.status}: {view.error}", SEE_ABOVE)
    if view.reward != 1.0:
        raise SessionFault(
            f"the right fix of {task.task_id} earned {view.reward}, not 1 ({view.agent_exit_status})",
            f"build the demo again: rm -r {demo}, then {BUILD_DEMO}",
        )
    remaining += [f"/dev/{device}" for device in find_unconfigured((demo / "images").resolve())]
    if remaining:
        raise SessionFault(f"reward 1, but the server left behind: {', '.join(remaining)}", SEE_ABOVE)
    summary = f"{task.task_id}: {view.n_calls} model calls, reward {view.reward:g}"
    return f"{summary}, all stopped, in {time.monotonic() - started:.1f} s"


def _start(folder: Path, demo: Path) -> tuple[subprocess.Popen, str, Path]:
    """Start an agent server with default settings, so that the user's agent or limits do not decide the result."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENT_SERVER_", "R2E_"))
    } | {
        "R2E_DATA_PATH": str(demo / "tasks"),
        "R2E_SIF_DIR": str(demo / "images"),
        "AGENT_SERVER_WORK_DIR": str(folder / "work"),
        "AGENT_SERVER_PORT": str(port),
        "HOME": str(folder),  # for the folders of gunicorn and the agent
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "agent"),
        "AGENT_SERVER_DRAIN_TIMEOUT_S": "5",
    }
    log = folder / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "agent_server"]
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return server, f"http://127.0.0.1:{port}", log


def _await_ready(server: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    with http_session(url) as http:
        while True:
            with suppress(requests.RequestException):
                if http.get(f"{url}/readyz", timeout=5).ok:
                    return
            if server.poll() is not None:
                raise SessionFault(f"the agent server ended with {server.returncode}: {_tail(log)}", SEE_ABOVE)
            if time.monotonic() > deadline:
                raise SessionFault(
                    f"the agent server was not ready after {READY_TIMEOUT_S:g} s: {_tail(log)}", SEE_ABOVE
                )
            time.sleep(0.1)


def _stop(server: subprocess.Popen) -> list[str]:
    """Stop the server, then kill every process below this one. Returns those that did not end by themselves."""
    remaining = []
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        remaining.append(f"the server {server.pid}, {STOP_TIMEOUT_S:g} s after SIGTERM")
        kill(server.pid)
        server.wait()
    for pid in living_descendants(EXIT_TIMEOUT_S):
        remaining.append(f"process {pid}")
        kill(pid)
    living_descendants(EXIT_TIMEOUT_S)
    return remaining


def living_descendants(timeout_s: float) -> list[int]:
    """Return the pids below this process that have not ended within the timeout. Ended orphans are reaped."""
    deadline = time.monotonic() + timeout_s
    while True:
        reap_orphans()
        living = [process.pid for process in descendants(os.getpid()) if process.state not in "ZX"]
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-600:] or "(empty)"
