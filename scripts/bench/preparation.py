"""Seconds and memory until the first model call on a large repository: of a row's first session, of later ones, and of
32 sessions of 8 rows at once; next to the same without prepared repositories, in the same run.

    python -m scripts.bench.preparation [--commits 40000] [--files 2000]

The repository is the demo's, with generated files and history beside it.
Invariant: the time runs from the request until the model gets the first call.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as parquet

from agent_server.sandboxes import apptainer
from client.wire import SessionRequest, SessionView
from scripts.bench.serving import DEMO, BenchServer, agent_server
from tests.scripted_model import SUBMIT, ScriptedModel, serving

ROWS = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[:8]
SESSIONS_PER_ROW = 4
FILE_WORDS = 300  # 3 KB in a file
AUTHOR = "committer bench <bench@localhost> 1700000000 +0000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=40_000)
    parser.add_argument("--files", type=int, default=2_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-images-") as folder:
        images = Path(folder, "images")
        size = make_image(images, arguments.commits, arguments.files)
        print(f"{arguments.commits} commits, {arguments.files} files, image of {size >> 20} MiB")
        print(f"{'':24} {'first, s':>9} {'MiB':>6} {'later, s':>9} {'MiB':>6} {'start, s':>9} {'32 at once, s':>14}")
        for name, settings in (("prepared once", {}), ("in each session", {"prepared_mib": 0})):
            with serving() as model, agent_server(images=images, train_concurrency=32, **settings) as server:
                report(name, server, model)


def report(name: str, server: BenchServer, model: ScriptedModel) -> None:
    run(server, model, ROWS[-1:])  # imports, and files in the page cache
    first_s, [first] = run(server, model, ROWS[:1])
    later = [run(server, model, ROWS[:1]) for _ in range(5)]
    later_s = statistics.median(seconds for seconds, _ in later)
    start_s = statistics.median(view.seconds["sandbox_start"] for _, [view] in later)
    for row in ROWS[1:]:
        run(server, model, [row])
    at_once_s, _ = run(server, model, ROWS * SESSIONS_PER_ROW)
    mib = [view.peak_memory_bytes >> 20 for view in (first, later[-1][1][0])]
    print(f"{name:24} {first_s:9.2f} {mib[0]:6} {later_s:9.2f} {mib[1]:6} {start_s:9.2f} {at_once_s:14.2f}", flush=True)


def run(server: BenchServer, model: ScriptedModel, rows: Sequence[dict]) -> tuple[float, list[SessionView]]:
    """Sessions of these rows at once: the seconds until all have called the model, and their records."""
    started, keys = time.monotonic(), [uuid.uuid4().hex for _ in rows]
    sessions = [create(server, model, key, row["instance_id"]) for key, row in zip(keys, rows, strict=True)]
    while not all(key in model.requests for key in keys):
        time.sleep(0.002)
    seconds = time.monotonic() - started
    views = [server.client.wait(session, timeout_s=600) for session in sessions]
    assert all(view.status == "completed" for view in views), views
    return seconds, views


def create(server: BenchServer, model: ScriptedModel, key: str, task_id: str) -> str:
    model.scripts[key] = [SUBMIT]
    request = SessionRequest(
        session_id=key, group_id=key, mode="train", base_url=model.url, api_key=key, task_id=task_id
    )
    return server.client.create(request)


def make_image(folder: Path, n_commits: int, n_files: int) -> int:
    """The demo's image with files and history in its repository. Returns its size in bytes."""
    folder.mkdir()
    source, root = apptainer.image_path(DEMO / "images", ROWS[0]["image_name"]), folder / "root"
    listed = subprocess.run(["apptainer", "sif", "list", str(source)], check=True, capture_output=True, text=True)
    [squashfs] = [line for line in listed.stdout.splitlines() if "Squashfs" in line]
    offset = squashfs.split("|")[3].split("-")[0].strip()
    subprocess.run(["unsquashfs", "-q", "-n", "-o", offset, "-d", str(root), str(source)], check=True)
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-C", str(root / "testbed")]
    with subprocess.Popen([*git, "fast-import", "--quiet", "--force"], stdin=subprocess.PIPE) as importing:
        for line in history(n_commits, n_files):
            importing.stdin.write(line.encode())
    assert importing.returncode == 0
    for command in (["checkout", "-q", "history", "--", "generated"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    image = apptainer.image_path(folder, ROWS[0]["image_name"])
    options = ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"]
    subprocess.run(["apptainer", "--silent", "build", *options, str(image), str(root)], check=True)
    subprocess.run(["rm", "-rf", str(root)], check=True)
    return image.stat().st_size


def history(n_commits: int, n_files: int) -> Iterator[str]:
    """A stream for git fast-import: a branch on which each commit changes one file."""
    choose = random.Random(0)
    for number in range(n_commits):
        file = number if number < n_files else choose.randrange(n_files)
        content = "\n".join(f"{choose.getrandbits(32):08x}" for _ in range(FILE_WORDS))
        message = f"commit {number}"
        yield f"commit refs/heads/history\n{AUTHOR}\ndata {len(message)}\n{message}\n"
        yield f"M 644 inline generated/{file % 40}/module_{file}.txt\ndata {len(content)}\n{content}\n"


if __name__ == "__main__":
    sys.exit(main())
