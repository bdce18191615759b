"""Latency of POST and GET, and order of admission, with a thousand queued sessions, a waiting client for each, and
64 running.

    python -m scripts.bench.queue [--queued 1000] [--running 64]

Sessions run on a fake executor (scripts/bench/queue_app.py), so that only the server is measured.
Invariant: every client holds its own connection, like agent_client.sh.
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

CONCURRENT_POSTS = 16  # as many as a trainer node has cores
APP = ("-m", "gunicorn", "-c", str(ROOT / "agent_server" / "gunicorn.conf.py"), "scripts.bench.queue_app:serve()")


@dataclass(slots=True)
class Samples:
    """Latencies of all requests, and the peak of the server's memory."""

    posts_ms: list[float] = field(default_factory=list)
    gets_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)  # from the end in the store to the response at the client
    memory_bytes: float = 0.0
    ended_at: dict[str, float] = field(default_factory=dict)  # Unix seconds of each client's response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queued", type=int, default=1000)
    parser.add_argument("--running", type=int, default=64)
    arguments = parser.parse_args()
    measure_queue(arguments.queued, arguments.running)


def measure_queue(queued: int, running: int = 64) -> None:
    samples = Samples()
    with agent_server(*APP, train_concurrency=running) as server:
        asyncio.run(_clients(server, queued, samples))
        events = [json.loads(line) for line in (server.work_dir / "events.jsonl").read_text().splitlines()]
    order = {
        name: [event["session_id"] for event in events if event["name"] == name]
        for name in ("queued", "admitted", "completed")
    }
    ends = {event["session_id"]: event["at"] for event in events if event["name"] == "completed"}
    samples.lags_ms = [(at - ends[session_id]) * 1e3 for session_id, at in samples.ended_at.items()]
    print(f"{queued} sessions and as many waiting clients, {running} running on a fake executor:")
    print(f"{'':34} {'median':>8} {'p99':>8}  bound")
    for name, values, bound in (
        ("POST, ms", samples.posts_ms, "100"),
        ("GET, ms", samples.gets_ms, "100"),
        ("end to response at client, ms", samples.lags_ms, "100"),
    ):
        print(
            f"{name:34} {statistics.median(values):8.1f} {sorted(values)[int(0.99 * (len(values) - 1))]:8.1f}  {bound}"
        )
    print(f"{'server memory, MB':34} {samples.memory_bytes / 1e6:8.0f} {'':8}  400")
    print(f"{'admitted in order of arrival':34} {order['queued'] == order['admitted']!s:>8}")
    print(f"{'completed':34} {len(order['completed']):8}")


async def _clients(server: BenchServer, n: int, samples: Samples) -> None:
    semaphore, all_done = asyncio.Semaphore(CONCURRENT_POSTS), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as http:
        clients = [asyncio.create_task(_client(http, number, semaphore, samples)) for number in range(n)]
        monitor = asyncio.create_task(_monitor(http, samples, all_done))
        await asyncio.gather(*clients)
        all_done.set()
        await monitor


async def _client(http: aiohttp.ClientSession, number: int, semaphore: asyncio.Semaphore, samples: Samples) -> None:
    body = {
        "session_id": f"s{number}",
        "group_id": f"g{number // 8}",
        "mode": "train",
        "base_url": "http://127.0.0.1:9",
        "api_key": f"k{number}",
    }
    async with semaphore:
        started = time.monotonic()
        async with http.post("/sessions", json=body) as response:
            session_id = (await response.json())["session_id"]
        samples.posts_ms.append((time.monotonic() - started) * 1e3)
    async with http.get(f"/sessions/{session_id}", params={"wait": "600"}) as response:
        view = await response.json()
    samples.ended_at[session_id] = time.time()
    assert view["status"] == "completed", view


async def _monitor(http: aiohttp.ClientSession, samples: Samples, done: asyncio.Event) -> None:
    """Sample plain GETs and the server's memory until `done`."""
    while not done.is_set():
        started = time.monotonic()
        async with http.get("/sessions/none") as response:
            await response.read()
        samples.gets_ms.append((time.monotonic() - started) * 1e3)
        if len(samples.gets_ms) % 20 == 0:
            async with http.get("/metrics") as response:
                text = await response.text()
            memory = next(
                float(line.split()[1])
                for line in text.splitlines()
                if line.startswith("process_resident_memory_bytes ")
            )
            samples.memory_bytes = max(samples.memory_bytes, memory)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
