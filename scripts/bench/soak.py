"""Soak test: many sessions on real sandboxes, mixed with cancels and kills, then a count of leftovers.

    python -m scripts.bench.soak [--sessions 2000] [--concurrency 8] [--seed 0]

Of a hundred sessions about sixty run without a fault (a third of them graded), twenty are cancelled at a random
moment, and ten each lose their worker or their sandbox to SIGKILL. Ten times the fork server is killed, and twice
the whole server, which is then started again on the same work directory. Invariant: every session ends in a status
that its fault allows. Leaks are counted by the kernel, not by the server.
"""

import argparse
import os
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

from agent_server.sandboxes.processes import descendants, kill
from agent_server.store.database import DATABASE_NAME
from client.wire import SessionRequest
from scripts.bench.serving import DEMO, BenchServer, agent_server
from tests.scripted_model import ScriptedModel, serving

ROW = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[0]
FIX = f"git apply -R <<'END'\n{ROW['patch'].rstrip()}\nEND"
RETENTION_S = 20.0
SPARE_FILES = 8  # of open connections
ALLOWED = {
    "none": {"completed"},
    "cancel": {"completed", "cancelled"},
    # A kill before the first model call is retried, one after the end has no effect.
    "kill worker": {"completed", "failed"},
    "kill sandbox": {"completed", "failed"},
}


@dataclass(frozen=True, slots=True)
class Plan:
    number: int
    fault: str
    after_s: float
    script: list[str]


def plans(n: int, seed: int) -> list[Plan]:
    chance = random.Random(seed)
    faults = chance.choices(list(ALLOWED), weights=[60, 20, 10, 10], k=n)
    return [
        Plan(i, fault, chance.uniform(0.0, 1.5), [FIX] if chance.random() < 0.33 else ["true"])
        for i, fault in enumerate(faults)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    statuses, leaks = soak(arguments.sessions, arguments.concurrency, arguments.seed)
    for (fault, status), n in sorted(statuses.items()):
        print(f"{fault:14} {status:10} {n:6}")
    print("\n".join(f"leftover: {name:36} {value}" for name, value in leaks.items()))
    return 1 if any(leaks.values()) else 0


def soak(n: int, concurrency: int, seed: int) -> tuple[Counter, dict[str, int]]:
    """Run the soak; returns the sessions by (fault, status), and the leftovers (all should be 0)."""
    before = count_resources()
    with serving() as model, agent_server(train_concurrency=concurrency, record_retention_s=RETENTION_S) as server:
        _run(
            server, model, Plan(-1, "none", 0.0, [FIX])
        )  # warms up, so that the count of descriptors starts in operation
        files_before = server_files(server)
        statuses: Counter[tuple[str, str]] = Counter()
        with ThreadPoolExecutor(2 * concurrency) as pool, _FaultInjector(server, n):
            for plan, status in pool.map(lambda plan: (plan, _run(server, model, plan)), plans(n, seed)):
                statuses[plan.fault, status] += 1
                model.requests.clear()
        leaks = _leftovers(server, before, files_before)
    leaks["processes after the server's end"] = len(_list_processes(server))
    return statuses, leaks


def count_resources() -> dict[str, int]:
    """Count the kernel's resources on this machine."""
    states = [text[text.rindex(")") + 2] for text in _stats()]
    return {
        "zombies": states.count("Z"),
        "loop devices": sum(1 for _ in Path("/sys/block").glob("loop*/loop/backing_file")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
    }


def server_files(server: BenchServer) -> int:
    """Count the open file descriptors of the server's processes."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in _list_processes(server))


def _run(server: BenchServer, model: ScriptedModel, plan: Plan) -> str:
    key = f"soak-{plan.number}"
    model.scripts[key] = plan.script
    client = server.client
    request = SessionRequest(
        session_id=key, group_id=key, mode="train", base_url=model.url, api_key=key, task_id=ROW["instance_id"]
    )
    session_id = client.create(request)
    if plan.fault != "none":
        _wait_for_worker(server, session_id)
        time.sleep(plan.after_s)
        if plan.fault == "cancel":
            client.cancel(session_id)
        elif worker := _worker(server, session_id):
            for pid in [worker] if plan.fault == "kill worker" else [process.pid for process in descendants(worker)]:
                kill(pid)
    view = client.wait(session_id, timeout_s=600)
    del model.scripts[key]
    assert view.status in ALLOWED[plan.fault], f"session {plan.number} ({plan.fault}) ended {view.status}: {view.error}"
    return str(view.status)


def _wait_for_worker(server: BenchServer, session_id: str) -> None:
    while not _worker(server, session_id) and not server.client.get(session_id).status.terminal:
        time.sleep(0.02)


def _worker(server: BenchServer, session_id: str) -> int:
    with closing(sqlite3.connect(server.work_dir / DATABASE_NAME, timeout=30)) as database:
        row = database.execute(
            "SELECT worker_pid FROM sessions WHERE id = ? AND ended_at IS NULL", (session_id,)
        ).fetchone()
    return (row and row[0]) or 0


class _FaultInjector:
    """Kills the fork server ten times and the whole server twice, until the context ends."""

    def __init__(self, server: BenchServer, n: int):
        self._server, self._n, self._over = server, n, threading.Event()
        self._thread = threading.Thread(target=self._disturb)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()

    def _disturb(self) -> None:
        kills_of_all = kills_of_fork_server = 0
        while not self._over.wait(2.0):
            done = self._done()
            if done * 3 > self._n * (kills_of_all + 1) and kills_of_all < 2:
                kills_of_all += 1
                self._server.kill()
                self._server.start()
            elif done * 10 > self._n * (kills_of_fork_server + 1):
                kills_of_fork_server += 1
                for pid in _list_processes(self._server):
                    if b"fork_server" in _read(f"/proc/{pid}/cmdline") and os.getpgid(pid) == self._server.process.pid:
                        kill(pid)

    def _done(self) -> int:
        lines = (self._server.work_dir / "events.jsonl").read_text().splitlines()
        return sum('"total_s"' in line for line in lines)


def _leftovers(server: BenchServer, before: dict[str, int], files_before: int) -> dict[str, int]:
    """Count what was not there before, after records have had time to expire and processes to end."""
    deadline = time.monotonic() + 3 * RETENTION_S + 30
    while True:
        now = count_resources()
        with closing(sqlite3.connect(server.work_dir / DATABASE_NAME, timeout=30)) as database:
            rows = {
                f"rows of {table}": database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
                for table in ("sessions", "events")
            }
        leaks = {name: max(0, now[name] - before[name]) for name in before}
        leaks |= rows | {"scratch folders": len(os.listdir(server.work_dir / "scratch"))}
        leaks["open files of the server"] = max(0, server_files(server) - files_before - SPARE_FILES)
        if not any(leaks.values()) or time.monotonic() > deadline:
            return leaks
        time.sleep(1.0)


def _list_processes(server: BenchServer) -> list[int]:
    variable = f"AGENT_SERVER_WORK_DIR={server.work_dir}".encode()
    return [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and variable in _read(f"/proc/{pid}/environ").split(b"\0")
    ]


def _stats() -> Iterator[str]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if text := _read(f"/proc/{pid}/stat").decode(errors="replace"):
            yield text


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
