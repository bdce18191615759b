"""A real agent server on the demo image, and a scripted model for its agents to call."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import requests

from agent_server.sandboxes.processes import descendants, read_process
from agent_server.store.database import DATABASE_NAME
from agent_server.tasks.order import TaskOrder
from client.api import AgentServerClient
from client.wire import SessionRequest, SessionView
from tests.agent_server.grading.grading_bench import GradingBench
from tests.agent_server.grading.sample_rows import Made, make_all
from tests.scripted_model import ScriptedModel, serving

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
ROW = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[0]  # any row will do; its fix is its bug undone
TASK, FILE = ROW["instance_id"], ROW["file"]
TEST_FILE = ROW["FAIL_TO_PASS"][0].split("::")[0]
GOOD_LINE = next(line[1:] for line in ROW["patch"].splitlines() if line.startswith("-") and not line.startswith("---"))
FIX = f"git apply -R <<'END'\n{ROW['patch'].rstrip()}\nEND"
WRONG = f"echo 'raise ValueError' >> {FILE}"
ONE_TASK = TaskOrder({"train": ["t"], "eval": ["t"]}, seed=0)


def session_request(session: str, group: str, mode: str = "train", **fields) -> SessionRequest:
    """A request for a store, whose model endpoint is never called."""
    return SessionRequest(session_id=session, group_id=group, mode=mode, base_url="http://x", api_key="k", **fields)


@dataclass
class RunningServer:
    """A server process, its URL and its work directory."""

    url: str
    work_dir: Path
    process: subprocess.Popen
    environment: dict[str, str]

    @property
    def client(self) -> AgentServerClient:
        return AgentServerClient(self.url, outage_s=10.0)

    @property
    def control(self) -> dict[str, str]:
        """Headers of a call that changes the server."""
        return {"Authorization": f"Bearer {(self.work_dir / 'control_token').read_text()}"}

    def create(self, model: ScriptedModel, script: list, *, key: str = "", task_id: str | None = TASK, **fields) -> str:
        """Queue a session whose model follows `script`; returns the server's id."""
        key = key or uuid.uuid4().hex
        model.scripts[key] = script
        request = {
            "session_id": key,
            "group_id": key,
            "mode": "train",
            "base_url": model.url,
            "api_key": key,
            "task_id": task_id,
        }
        return self.client.create(SessionRequest(**request | fields))

    def run(self, model: ScriptedModel, script: list, **fields) -> SessionView:
        return self.client.wait(self.create(model, script, **fields), timeout_s=60)

    def processes(self) -> list[int]:
        """Every process of this work directory: the server, its fork server, its workers."""
        mark = f"AGENT_SERVER_WORK_DIR={self.work_dir}".encode()
        return [pid for pid in all_pids() if mark in read_or_empty(f"/proc/{pid}/environ").split(b"\0")]

    def worker(self, session_id: str) -> int:
        """Pid of the session's worker; 0 before there is one."""
        return self.column(session_id, "worker_pid") or 0

    def column(self, session_id: str, name: str):
        """A column of the session's record."""
        with closing(sqlite3.connect(self.work_dir / DATABASE_NAME)) as database:
            return database.execute(f"SELECT {name} FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]

    def runs(self, session_id: str, command: str) -> bool:
        """A process below the session's worker has this text in its command line."""
        if not (worker := self.worker(session_id)):
            return False
        lines = (read_or_empty(f"/proc/{process.pid}/cmdline") for process in descendants(worker))
        return any(command.encode() in line.replace(b"\0", b" ") for line in lines)

    def session_processes(self, worker: int) -> list[int]:
        """The worker and everything it started: they share its process group, or sit in a sandbox below it."""
        return (
            [p.pid for p in map(read_process, all_pids()) if p and p.state != "Z" and process_group(p.pid) == worker]
            if worker
            else []
        )


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def read_or_empty(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, *, within_s: float = 10.0, what: str = "") -> None:
    """Poll until the condition holds; fail after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or condition}"
        time.sleep(0.02)


def server_environment(work_dir: Path) -> dict[str, str]:
    """This process's environment, with the settings of a server on the demo rows and no others."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_SERVER_", "R2E_"))}
    return inherited | {
        "R2E_DATA_PATH": str(DEMO / "tasks"),
        "R2E_SIF_DIR": str(DEMO / "images"),
        "AGENT_SERVER_WORK_DIR": str(work_dir),
    }


def launch(work_dir: Path, **settings: str) -> RunningServer:
    """A healthy server in a process group of its own."""
    port = settings.setdefault("AGENT_SERVER_PORT", str(free_port()))
    defaults = {"AGENT_SERVER_AGENT_CONFIG": "text", "AGENT_SERVER_COMMAND_TIMEOUT_S": "20"}
    environment = server_environment(work_dir) | defaults | settings
    with (work_dir.parent / f"{work_dir.name}.log").open("ab") as log:
        process = subprocess.Popen(
            # An interrupted pytest-xdist kills its processes without teardown: the kernel then ends the server.
            ["setpriv", "--pdeathsig", "INT", sys.executable, "-m", "agent_server"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = RunningServer(f"http://127.0.0.1:{port}", work_dir, process, environment)

    def healthy() -> bool:
        assert process.poll() is None, (work_dir.parent / f"{work_dir.name}.log").read_text()
        try:
            return requests.get(f"{server.url}/healthz", timeout=5).ok
        except requests.RequestException:  # not up yet, or slow on a busy machine
            return False

    try:
        eventually(healthy, within_s=90.0, what="agent server healthy")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def shut_down(*servers: RunningServer) -> None:
    """Stop them as an operator would, and check that no process is left."""
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)  # SIGTERM would leave running sessions to the next start
    for server in servers:
        server.process.wait(timeout=30)
    for server in servers:
        eventually(lambda server=server: not server.processes(), what="all of the server's processes gone")


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[RunningServer]:
    """One server for all tests that do not harm it."""
    running = launch(tmp_path_factory.mktemp("agents") / "work")
    yield running
    shut_down(running)


@pytest.fixture
def own_server(tmp_path) -> Iterator:
    """A factory of servers for tests that stop, kill or configure theirs."""
    started: list[RunningServer] = []

    def start(work_dir: Path | None = None, **settings: str) -> RunningServer:
        started.append(launch(work_dir or tmp_path / "work", **settings))
        return started[-1]

    yield start
    shut_down(*started)


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModel]:
    with serving() as scripted:
        yield scripted


@pytest.fixture(scope="session")
def demo_image() -> Path:
    return DEMO / "images" / "demo__quickstart__1.sif"


@pytest.fixture(scope="session")
def sample_rows(demo_image, tmp_path_factory) -> tuple[Path, dict[str, Made]]:
    """The images' folder and a task of each dataset's format, by the name of its file."""
    images, made = make_all(demo_image, tmp_path_factory.mktemp("sample_rows") / "made")
    return images, {row.path.stem: row for row in made}


@pytest.fixture
def grading_bench(sample_rows, tmp_path):
    """A GradingBench of a task, by its file's name."""
    opened = []

    def of(name: str) -> GradingBench:
        opened.append(GradingBench(sample_rows[0], tmp_path, sample_rows[1][name]))
        return opened[-1]

    yield of
    for bench in opened:
        bench.close()


@pytest.fixture(autouse=True)
def nothing_mounted_behind():
    """No test may leave a mount or a loop device."""

    def held() -> tuple[set[str], str]:
        mounts = {
            line for line in Path("/proc/mounts").read_text().splitlines() if "apptainer" in line or "squashfs" in line
        }
        return mounts, subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout if shutil.which(
            "losetup"
        ) else ""

    before = held()
    yield
    eventually(lambda: held()[0] <= before[0], what="mounts gone")
