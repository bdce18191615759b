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
from pathlib import Path

import requests

from client.api import AgentServerClient
from trainer.services.service import free_port

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
START_TIMEOUT_S = 120.0


class BenchServer:
    """`command` goes after the interpreter; `environment` is the server's whole environment."""

    def __init__(self, work_dir: Path, port: int, command: list[str], environment: dict[str, str]):
        self.url, self.work_dir = f"http://127.0.0.1:{port}", work_dir
        self._command, self._environment = [sys.executable, *command], environment
        self._log = work_dir.with_suffix(".log")
        self.process: subprocess.Popen | None = None

    @property
    def client(self) -> AgentServerClient:
        return AgentServerClient(self.url)

    def start(self) -> None:
        """Return when sessions are accepted and run."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the agent server did not become ready: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server and its fork server at once, without a word. Workers lead groups of their own and go on."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False


@contextmanager
def agent_server(*command: str, **settings: object) -> Iterator[BenchServer]:
    """Running until the context ends. `command`: instead of `-m agent_server`; `settings`: AGENT_SERVER_ variables, prefix left out."""
    with tempfile.TemporaryDirectory(prefix="bench-agents-") as folder:
        port, work_dir = free_port(), Path(folder) / "work"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AGENT_SERVER_", "R2E_"))
        }
        environment |= {
            "R2E_DATA_PATH": str(DEMO / "tasks"),
            "R2E_SIF_DIR": str(DEMO / "images"),
            "AGENT_SERVER_PORT": str(port),
        }
        environment |= {"AGENT_SERVER_WORK_DIR": str(work_dir), "AGENT_SERVER_AGENT_CONFIG": "text"}
        environment |= {f"AGENT_SERVER_{name.upper()}": str(value) for name, value in settings.items()}
        server = BenchServer(work_dir, port, list(command) or ["-m", "agent_server"], environment)
        server.start()
        try:
            yield server
        finally:
            server.stop()
