"""One scripted session of the demo rows, end to end: an agent server of its own on a free port, real sandboxes, real grading.

Invariant: whatever happens, everything that was started has ended and every file is gone when `run_session` is done; a process or loop
device that stays is a fault. The caller must be a subreaper, so that nothing can leave its tree.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import requests

from agent_server.sandboxes.loop_devices import find_unconfigured
from agent_server.sandboxes.processes import descendants, kill, reap_orphans
from agent_server.tasks.catalog import Catalog
from client.api import AgentServerClient
from client.conformance.model import serving_model
from client.errors import StackError
from client.wire import SessionRequest, Status

ROOT = Path(__file__).resolve().parents[2]
READY_S, SESSION_S, STOP_S, GONE_S = 120.0, 180.0, 60.0, 5.0
BUILD_DEMO = "bash setup/demo/image.sh .venv/bin/python ${SWE_RL_CACHE:-.cache}/demo as root"
LOOK_ABOVE = "see the FAILs and warnings above; with none, the server's own words stand here"


class SessionFault(Exception):
    """What went wrong; `remedy` is what to do."""

    def __init__(self, found: str, remedy: str):
        super().__init__(found)
        self.remedy = remedy


def run_session(demo: Path) -> str:
    """What was seen, when all is well: a session of the first training row whose model undoes the row's bug earned 1. Raises SessionFault."""
    try:
        catalog = Catalog(demo / "tasks")
        row, _, task = catalog.get_row("train", catalog.ids("train")[0])
    except StackError as missing:
        raise SessionFault(f"the demo's rows are not there: {missing}", BUILD_DEMO) from missing
    fix = f"git apply -R <<'END'\n{row['patch'].rstrip()}\nEND"
    began = time.monotonic()
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
            view = client.wait(client.create(request), timeout_s=SESSION_S)
        except (StackError, TimeoutError) as failed:
            raise SessionFault(f"{failed}; the server said: {_end_of(log)}", LOOK_ABOVE) from failed
        finally:
            left = _stop(server)
    if view.status is not Status.COMPLETED:
        raise SessionFault(f"the session is {view.status}: {view.error}", LOOK_ABOVE)
    if view.reward != 1.0:
        raise SessionFault(
            f"the right fix of {task.task_id} earned {view.reward}, not 1 ({view.agent_exit_status})",
            f"build the demo anew: rm -r {demo}, then {BUILD_DEMO}",
        )
    left += [f"/dev/{device}" for device in find_unconfigured((demo / "images").resolve())]
    if left:
        raise SessionFault(
            f"reward 1, but this outlived the server and was ended or is still there: {', '.join(left)}", LOOK_ABOVE
        )
    return f"{task.task_id}: {view.n_calls} model calls, reward {view.reward:g}, all stopped, in {time.monotonic() - began:.1f} s"


def _start(folder: Path, demo: Path) -> tuple[subprocess.Popen, str, Path]:
    """An agent server with its own defaults, so that a user's agent or limits do not decide how the script ends."""
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
        "HOME": str(folder),  # gunicorn's and the agent's own folders
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "agent"),
        "AGENT_SERVER_DRAIN_TIMEOUT_S": "5",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
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
    deadline = time.monotonic() + READY_S
    with requests.Session() as http:
        http.trust_env = False  # no proxy stands between us and loopback
        while True:
            try:
                if http.get(f"{url}/readyz", timeout=5).ok:
                    return
            except requests.RequestException:
                pass
            if server.poll() is not None:
                raise SessionFault(f"the agent server ended with {server.returncode}: {_end_of(log)}", LOOK_ABOVE)
            if time.monotonic() > deadline:
                raise SessionFault(f"the agent server was not ready after {READY_S:g} s: {_end_of(log)}", LOOK_ABOVE)
            time.sleep(0.1)


def _stop(server: subprocess.Popen) -> list[str]:
    """End the server in its own way and, past that, everything below us. Returns what did not end by itself."""
    left = []
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        left.append(f"the server {server.pid}, {STOP_S:g} s after SIGTERM")
        kill(server.pid)
        server.wait()
    for pid in living_after(GONE_S):
        left.append(f"process {pid}")
        kill(pid)
    living_after(GONE_S)
    return left


def living_after(within_s: float) -> list[int]:
    """The processes below us that have not ended within that time; orphans that have are reaped."""
    deadline = time.monotonic() + within_s
    while True:
        reap_orphans()
        living = [process.pid for process in descendants(os.getpid()) if process.state not in "ZX"]
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(0.05)


def _end_of(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-600:] or "(nothing)"
