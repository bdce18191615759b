"""An agent server for a benchmark, on the demo rows, in a temporary work directory.

Invariant: when the context ends, the server and every process it started have ended.
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
from client.http_session import http_session
from trainer.services.service import free_port

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
START_TIMEOUT_S = 120.0


class BenchServer:
    """`command`: arguments of the interpreter. `environment`: the server's whole environment."""

    def __init__(self, work_dir: Path, port: int, command: list[str], environment: dict[str, str]):
        self.url, self.work_dir = f"http://127.0.0.1:{port}", work_dir
        self._command, self._environment = [sys.executable, *command], environment
        self._log = work_dir.with_suffix(".log")
        self.process: subprocess.Popen | None = None

    @property
    def client(self) -> AgentServerClient:
        return AgentServerClient(self.url)

    def start(self) -> None:
        """Start the server; returns when it accepts and runs sessions."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text()[-2000:]
                raise SystemExit(
                    f"the agent server is not ready after {START_TIMEOUT_S:g} s; its log ends with: {tail}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and its fork server. Workers lead process groups of their own and continue."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Stop the server by SIGINT and wait for its end."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def _is_ready(self) -> bool:
        try:
            with http_session(self.url) as http:
                return http.get(f"{self.url}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False


@contextmanager
def agent_server(*command: str, images: Path = DEMO / "images", **settings: object) -> Iterator[BenchServer]:
    """Run a server until the context ends. `command` replaces `-m agent_server`; `settings` are AGENT_SERVER_
    variables without the prefix."""
    with tempfile.TemporaryDirectory(prefix="bench-agents-") as folder:
        port, work_dir = free_port(), Path(folder) / "work"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AGENT_SERVER_", "R2E_"))
        }
        environment |= {
            "R2E_DATA_PATH": str(DEMO / "tasks"),
            "R2E_SIF_DIR": str(images),
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
