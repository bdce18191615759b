"""An agent server of a benchmark's own, on the demo rows, in a work directory that goes with it.

Invariant: when the context ends, so have the server and everything it started.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from client.api import AgentServerClient
from trainer.services import free_port

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class BenchServer:
    url: str
    work_dir: Path
    process: subprocess.Popen

    @property
    def client(self) -> AgentServerClient:
        return AgentServerClient(self.url)


@contextmanager
def agent_server(*command: str, **settings: object) -> Iterator[BenchServer]:
    """`command` after the interpreter (default: -m agent_server); `settings` are AGENT_SERVER_ variables without the prefix."""
    with tempfile.TemporaryDirectory(prefix="bench-agents-") as folder:
        port, work_dir = free_port(), Path(folder) / "work"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_SERVER_", "R2E_"))}
        environment |= {"R2E_DATA_PATH": str(DEMO / "tasks"), "R2E_SIF_DIR": str(DEMO / "images"), "AGENT_SERVER_PORT": str(port)}
        environment |= {"AGENT_SERVER_WORK_DIR": str(work_dir), "AGENT_SERVER_AGENT_CONFIG": "text"}
        environment |= {f"AGENT_SERVER_{name.upper()}": str(value) for name, value in settings.items()}
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *(command or ("-m", "agent_server"))], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        server = BenchServer(f"http://127.0.0.1:{port}", work_dir, process)
        try:
            _wait_ready(server, Path(folder) / "log")
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def _wait_ready(server: BenchServer, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if requests.get(f"{server.url}/readyz", timeout=5).ok:
                return
        except requests.ConnectionError:
            pass
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the agent server did not become ready: {log.read_text()[-2000:]}")
        time.sleep(0.05)
