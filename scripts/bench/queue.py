"""A thousand sessions queued with a thousand clients that wait, 64 running: how fast POST and GET answer, and in which order.

    python -m scripts.bench.queue [--queued 1000] [--running 64]

Sessions run on a fake below the executor's seam (scripts/bench/queue_app.py): what is measured is the server.
Invariant: every client holds its own connection, as agent_client.sh would.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field

import aiohttp

from scripts.bench.serving import ROOT, BenchServer, agent_server

AT_ONCE = (
    16  # clients that start at the same moment, each when another has its answer: as many as a trainer node has cores
)
APP = ("-m", "gunicorn", "-c", str(ROOT / "agent_server" / "gunicorn.conf.py"), "scripts.bench.queue_app:serve()")


@dataclass(slots=True)
class Seen:
    posts_ms: list[float] = field(default_factory=list)
    gets_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)  # from the end in the store to the answer at the client
    memory_bytes: float = 0.0
    ended_at: dict[str, float] = field(default_factory=dict)  # when each client had its answer, Unix seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queued", type=int, default=1000)
    parser.add_argument("--running", type=int, default=64)
    arguments = parser.parse_args()
    measure_queue(arguments.queued, arguments.running)


def measure_queue(queued: int, running: int = 64) -> None:
    seen = Seen()
    with agent_server(*APP, train_concurrency=running) as server:
        asyncio.run(_clients(server, queued, seen))
        events = [json.loads(line) for line in (server.work_dir / "events.jsonl").read_text().splitlines()]
    order = {
        name: [event["session_id"] for event in events if event["name"] == name]
        for name in ("queued", "admitted", "completed")
    }
    ends = {event["session_id"]: event["at"] for event in events if event["name"] == "completed"}
    seen.lags_ms = [(at - ends[session_id]) * 1e3 for session_id, at in seen.ended_at.items()]
    print(f"{queued} sessions and as many waiting clients, {running} running on a fake:")
    print(f"{'':34} {'median':>8} {'p99':>8}  bound")
    for name, values, bound in (
        ("POST, ms", seen.posts_ms, "100"),
        ("GET, ms", seen.gets_ms, "100"),
        ("end until the client knows, ms", seen.lags_ms, "100"),
    ):
        print(
            f"{name:34} {statistics.median(values):8.1f} {sorted(values)[int(0.99 * (len(values) - 1))]:8.1f}  {bound}"
        )
    print(f"{'server memory, MB':34} {seen.memory_bytes / 1e6:8.0f} {'':8}  400")
    print(f"{'admitted in order of arrival':34} {order['queued'] == order['admitted']!s:>8}")
    print(f"{'completed':34} {len(order['completed']):8}")


async def _clients(server: BenchServer, n: int, seen: Seen) -> None:
    gate, everybody_waits = asyncio.Semaphore(AT_ONCE), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as http:
        waiting = [asyncio.create_task(_client(http, number, gate, seen)) for number in range(n)]
        looking = asyncio.create_task(_look(http, seen, everybody_waits))
        await asyncio.gather(*waiting)
        everybody_waits.set()
        await looking


async def _client(http: aiohttp.ClientSession, number: int, gate: asyncio.Semaphore, seen: Seen) -> None:
    body = {
        "session_id": f"s{number}",
        "group_id": f"g{number // 8}",
        "mode": "train",
        "base_url": "http://127.0.0.1:9",
        "api_key": f"k{number}",
    }
    async with gate:
        started = time.monotonic()
        async with http.post("/sessions", json=body) as answer:
            session_id = (await answer.json())["session_id"]
        seen.posts_ms.append((time.monotonic() - started) * 1e3)
    async with http.get(f"/sessions/{session_id}", params={"wait": "600"}) as answer:
        view = await answer.json()
    seen.ended_at[session_id] = time.time()
    assert view["status"] == "completed", view


async def _look(http: aiohttp.ClientSession, seen: Seen, done: asyncio.Event) -> None:
    """Plain GETs and the server's memory, all the while."""
    while not done.is_set():
        started = time.monotonic()
        async with http.get("/sessions/none") as answer:
            await answer.read()
        seen.gets_ms.append((time.monotonic() - started) * 1e3)
        if len(seen.gets_ms) % 20 == 0:
            async with http.get("/metrics") as answer:
                text = await answer.text()
            memory = next(
                float(line.split()[1])
                for line in text.splitlines()
                if line.startswith("process_resident_memory_bytes ")
            )
            seen.memory_bytes = max(seen.memory_bytes, memory)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
