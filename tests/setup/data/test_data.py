"""`python -m setup.data` as a user runs it, against a hub on loopback: fetch, select, resume, refuse, check."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_server.tasks.catalog import Catalog
from client.errors import DatasetError
from setup.data import rows as data_rows
from setup.data import sources as data_sources
from setup.data.rows import Selection
from tests.setup.data.hub_server import TOKEN, Hub, serving

ROOT = Path(__file__).parents[3]
R2E = "R2E-Gym/R2E-Gym-Subset"
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: dev
    path: data/dev-*
---
Rows.
"""
CHUNK = 10 << 20  # what the library passes on at once


def rows(start: int, stop: int) -> list[dict]:
    return [
        {
            "instance_id": f"row-{n}",
            "image_name": f"images/{n % 4}:1",
            "repo_name": ("pandas", "numpy", "pillow")[n % 3],
            "problem_statement": f"Row {n} is wrong.",
            "patch": "--- a/x\n+++ b/x\n",
            "FAIL_TO_PASS": [f"test_x.py::test_{n}"],
            "PASS_TO_PASS": [],
            "test_cmd": "pytest -rA",
            "number": n,
        }
        for n in range(start, stop)
    ]


def parquet(some: list[dict], **options) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(some), stream, **options)
    return stream.getvalue()


def _file(folder: Path, some: list[dict], **options) -> Path:
    path = folder / "in.parquet"
    path.write_bytes(parquet(some, **options))
    return path


def ballast(some: list[dict], size: int) -> bytes:
    """The rows as parquet of at least `size` bytes that do not compress."""
    for row in some:
        row["ballast"] = random.Random(row["number"]).randbytes(size // len(some))
    return parquet(some)


FILES = {
    "README.md": CARD,
    "data/train-00000-of-00002.parquet": parquet(rows(0, 30)),
    "data/train-00001-of-00002.parquet": parquet(rows(30, 60)),
    "data/dev-00000-of-00001.parquet": parquet(rows(60, 70)),
}


class World:
    """A hub, a cache and a folder, and the command between them."""

    def __init__(self, hub: Hub, url: str, folder: Path, word: str):
        self.hub, self.cache, self.folder = hub, folder / "hf", folder / "rows"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HF_") and not name.lower().endswith("_proxy")
        }
        self.environment = kept | {"HF_ENDPOINT": url, "HF_HOME": str(self.cache), "WORD": word}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "setup.data", *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """What the command says. It must end with `code`."""
        process = self.start(*arguments, **environment)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == code, said
        return said

    def fetch(
        self, mode: str = "train", dataset: str = "r2e-gym-subset", *arguments: str, code: int = 0, **environment: str
    ) -> str:
        return self.run("fetch", str(self.folder), mode, dataset, *arguments, code=code, **environment)

    def ids(self, mode: str = "train") -> list[str]:
        return pq.read_table(self.folder / f"{mode}.parquet")["instance_id"].to_pylist()

    def manifest(self, mode: str = "train") -> dict:
        return json.loads((self.folder / "manifest.json").read_text())["modes"][mode]

    def seen(self) -> set[str]:
        """Names in the folder that a reader would take for whole files."""
        return (
            {path.name for path in self.folder.iterdir() if not path.name.startswith(".")}
            if self.folder.exists()
            else set()
        )

    def partials(self) -> list[Path]:
        """Of large files. The library's own have longer names."""
        return [path for path in self.cache.glob("hub/datasets--*/blobs/*.incomplete") if len(path.stem) == 64]

    def sent(self) -> int:
        return sum(request.sent for request in self.hub.asked("/cdn/"))


@pytest.fixture
def world(tmp_path: Path, word: str, left_alive):
    hub = Hub()
    with serving(hub) as url:
        yield World(hub, url, tmp_path, word)
    assert not left_alive()


def names(start: int, stop: int, step: int = 1) -> list[str]:
    return [f"row-{n}" for n in range(start, stop, step)]


def test_two_modes_become_the_folder_that_the_agent_server_reads(world: World):
    commit = world.hub.add(R2E, FILES)
    world.fetch()
    world.fetch("eval", f"{R2E}:dev@{commit}")
    catalog = Catalog(world.folder)
    assert catalog.ids("train") == names(0, 60) and catalog.ids("eval") == names(60, 70)
    train = world.manifest()
    assert (train["revision"], train["split"], train["rows"], train["images"], train["file"]) == (
        commit,
        "train",
        60,
        4,
        "train.parquet",
    )
    assert [source["path"] for source in train["sources"]] == [path for path in FILES if "train" in path]
    assert (
        train["columns"]["FAIL_TO_PASS"].startswith("list<") and world.manifest("eval")["request"]["revision"] == commit
    )
    assert world.seen() == {"train.parquet", "eval.parquet", "manifest.json"} and not world.partials()


def test_a_run_with_nothing_to_do_asks_nobody(world: World):
    world.hub.add(R2E, FILES)
    world.fetch()
    asked = len(world.hub.requests)
    assert "nothing to do" in world.fetch() and len(world.hub.requests) == asked


def test_another_selection_of_the_same_files_fetches_none_again(world: World):
    world.hub.add(R2E, FILES)
    world.fetch()
    sent = world.sent()
    assert sent == sum(len(data) for path, data in FILES.items() if "train" in path)
    world.fetch("train", "r2e-gym-subset", "--columns", "number,instance_id")
    assert world.sent() == sent and list(world.manifest()["columns"]) == ["number", "instance_id"]


def test_selections_apply_in_their_order(world: World, tmp_path: Path):
    world.hub.add(R2E, FILES)
    (tmp_path / "ids").write_text("\n".join(names(0, 40)) + "\n\n")
    options = [
        "--where",
        "repo_name=pandas",
        "--where",
        "repo_name=numpy",
        "--where",
        "image_name=images/0:1",
        "--ids",
        str(tmp_path / "ids"),
        "--skip",
        "1",
    ]
    world.fetch("train", "r2e-gym-subset", *options)
    expected = [row["instance_id"] for row in rows(0, 40) if row["number"] % 3 < 2 and row["number"] % 4 == 0][1:]
    assert world.ids() == expected
    world.fetch("train", "r2e-gym-subset", *options, "--limit", "2")
    assert world.ids() == expected[:2] and world.manifest()["images"] == 1


def test_files_past_the_limit_are_not_fetched(world: World):
    world.hub.add(R2E, FILES)
    world.fetch("train", "r2e-gym-subset", "--skip", "5", "--limit", "25")
    assert world.ids() == names(5, 30)
    assert not world.hub.asked("/cdn/R2E-Gym/R2E-Gym-Subset/", "GET")[1:] and len(world.manifest()["sources"]) == 1


def test_rows_in_both_modes_are_told(world: World):
    world.hub.add(R2E, FILES)
    world.fetch("train", "r2e-gym-subset", "--skip", "10")
    assert "note" not in world.fetch("eval", "r2e-gym-subset", "--limit", "10")
    assert "note: 2 rows stand in train and in eval" in world.fetch("eval", "r2e-gym-subset", "--limit", "12")


def test_a_killed_download_goes_on_from_where_it_was(world: World):
    data = ballast(rows(0, 20), CHUNK + (4 << 20))
    world.hub.add(R2E, {"data/train.parquet": data})
    world.hub.slow_after = CHUNK + (1 << 20)
    process = world.start("fetch", str(world.folder), "train", "r2e-gym-subset")
    deadline = time.monotonic() + 60
    while not any(partial.stat().st_size >= CHUNK for partial in world.partials()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (partial,) = world.partials()
    here = partial.stat().st_size
    assert CHUNK <= here < len(data) and world.seen() == set()

    world.hub.slow_after = None
    said = world.fetch()
    assert f"{here / 1e6:.1f} MB of it are here" in said
    again = world.hub.asked("/cdn/")[-1]
    assert again.headers["range"] == f"bytes={here}-" and again.sent == len(data) - here
    assert world.ids() == names(0, 20) and world.seen() == {"train.parquet", "manifest.json"} and not world.partials()


def test_kills_at_any_moment_leave_nothing_half_written(world: World):
    world.hub.add(
        R2E,
        {
            "a/train-00000-of-00002.parquet": ballast(rows(0, 400), 12 << 20),
            "a/train-00001-of-00002.parquet": ballast(rows(400, 800), 12 << 20),
        },
    )
    kills = 0
    for wait_s in (0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7):
        process = world.start("fetch", str(world.folder), "train", "r2e-gym-subset")
        try:
            process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
        if "train.parquet" in world.seen():
            assert world.ids() == names(0, 800)
    world.fetch()
    assert kills and world.ids() == names(0, 800)
    assert world.run("check", str(world.folder)).endswith("is as its manifest says\n")
    assert {path.name for path in world.folder.iterdir()} == {
        "train.parquet",
        "manifest.json",
        ".lock",
    } and not world.partials()


def test_an_interrupt_keeps_what_is_there(world: World):
    world.hub.add(R2E, {"train.parquet": ballast(rows(0, 20), CHUNK + (4 << 20))})
    world.hub.slow_after = CHUNK + (1 << 20)
    process = world.start("fetch", str(world.folder), "train", "r2e-gym-subset")
    deadline = time.monotonic() + 60
    while not any(partial.stat().st_size >= CHUNK for partial in world.partials()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "the same command goes on from there" in said and "Traceback" not in said
    assert world.partials() and world.seen() == set()


def test_a_leftover_that_is_not_the_files_beginning_is_fetched_anew(world: World):
    world.hub.add(R2E, FILES)
    world.fetch()
    for blob in world.cache.glob("hub/datasets--*/blobs/*"):
        if len(blob.name) == 64:
            blob.with_name(blob.name + ".incomplete").write_bytes(b"something else, shorter")
            blob.unlink()
    world.fetch("train", "r2e-gym-subset", "--skip", "1")
    assert world.ids() == names(1, 60) and not world.partials()


def test_a_damaged_file_in_the_cache_is_fetched_anew(world: World):
    world.hub.add(R2E, FILES)
    world.fetch()
    for blob in world.cache.glob("hub/datasets--*/blobs/*"):
        blob.write_bytes(b"x" * blob.stat().st_size)
    world.fetch("train", "r2e-gym-subset", "--skip", "1")
    assert world.ids() == names(1, 60)


@pytest.mark.parametrize("name", ["data/train-00001-of-00002.parquet", "small.jsonl"])
def test_bytes_that_are_not_those_of_the_checksum_are_refused(world: World, name: str):
    files = FILES if "parquet" in name else {name: b'{"instance_id": "row-0"}\n'}
    world.hub.add(R2E, files)
    world.hub.instead = {name: b"x" * len(files[name])}
    dataset = R2E if "parquet" not in name else R2E + ":train"
    said = world.fetch("train", dataset, code=78)
    assert f"{name} has the checksum" in said and "run this again" in said and world.seen() == set()
    world.hub.instead = {}
    world.fetch("train", dataset)
    assert world.run("check", str(world.folder))


def test_a_gated_dataset_wants_a_token_and_its_token_goes_to_the_hub_only(world: World):
    world.hub.add(R2E, FILES, gated=True)
    for token in ({}, {"HF_TOKEN": "hf_other"}):
        said = world.fetch(code=78, **token)
        assert f"{R2E} is gated: accept its conditions" in said and "HF_TOKEN" in said and world.seen() == set()
    world.fetch(HF_TOKEN=TOKEN)
    assert world.ids() == names(0, 60)
    assert all("authorization" not in request.headers for request in world.hub.asked("/cdn/"))


@pytest.mark.parametrize(
    "dataset, options, said",
    [
        ("r2e-gym-subsett", (), "'r2e-gym-subsett' is no dataset: .*did you mean r2e-gym-subset"),
        ("nobody/nothing", (), "nobody/nothing .*it has no such dataset, or wants a token; .*HF_TOKEN"),
        ("r2e-gym-subset:trian", (), "no split 'trian' .did you mean train.*there are dev, train"),
        (R2E, (), "several splits, name one as R2E-Gym/R2E-Gym-Subset:SPLIT; there are dev, train"),
        ("r2e-gym-subset@v9", (), "no revision 'v9'"),
        ("r2e-gym-subset", ("--columns", "instnce_id"), "no column 'instnce_id' .did you mean instance_id"),
        ("r2e-gym-subset", ("--where", "repo=pandas"), "no column 'repo'"),
        ("r2e-gym-subset", ("--where", "pandas"), "'pandas' is not COLUMN=VALUE"),
        ("r2e-gym-subset", ("--where", "repo_name=pndas"), "no row is selected"),
        ("r2e-gym-subset", ("--where", "FAIL_TO_PASS=x"), "rows cannot be chosen by a column of type list"),
        ("r2e-gym-subset", ("--ids", "IDS"), "1 of 2 ids are those of no row, row-x among them"),
        ("r2e-gym-subset", ("--ids", "NONE"), "cannot be read"),
        ("r2e-gym-subset", ("--limit", "0"), "--limit 0 1 or more"),
        ("empty/none", (), "no parquet and no jsonl files .*empty/none@refs/convert/parquet"),
        ("broken/rows", (), "train.parquet cannot be read as parquet"),
    ],
)
def test_what_is_not_there_is_told_and_loses_nothing(
    world: World, tmp_path: Path, dataset: str, options: tuple[str, ...], said: str
):
    world.hub.add(R2E, FILES)
    world.hub.add("empty/none", {"README.md": b"nothing"})
    world.hub.add("broken/rows", {"train.parquet": b"PAR1" + b"x" * 2000 + b"PAR1"})
    (tmp_path / "ids").write_text("row-1\nrow-x\n")
    world.folder.mkdir()
    data_rows.write([_file(tmp_path, rows(0, 3))], Selection(), world.folder / "train.parquet", "an earlier run")
    (world.folder / ".lock").touch()
    before = {path: path.read_bytes() for path in world.folder.iterdir()}
    options = tuple(
        {"IDS": str(tmp_path / "ids"), "NONE": str(tmp_path / "none")}.get(option, option) for option in options
    )
    found = world.fetch("train", dataset, *options, code=78)
    assert re.search(said, found), found
    assert "Traceback" not in found and {path: path.read_bytes() for path in world.folder.iterdir()} == before


def test_offline_takes_what_the_cache_has(world: World, tmp_path: Path):
    commit = world.hub.add(R2E, FILES)
    world.fetch()
    world.hub.requests.clear()
    world.folder = tmp_path / "elsewhere"
    world.fetch(HF_HUB_OFFLINE="1")
    assert world.ids() == names(0, 60) and world.manifest()["revision"] == commit and not world.hub.requests
    assert "data/dev-00000-of-00001.parquet of R2E-Gym/R2E-Gym-Subset is not in the cache" in world.fetch(
        "eval", f"{R2E}:dev", code=75, HF_HUB_OFFLINE="1"
    )
    said = world.fetch("eval", "swe-gym", code=75, HF_HUB_OFFLINE="1")
    assert (
        "does not know SWE-Gym/SWE-Gym" in said and "run once without HF_HUB_OFFLINE" in said and not world.hub.requests
    )
    blob = max(world.cache.glob("hub/datasets--*/blobs/*"), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert "has the checksum" in world.fetch("train", "r2e-gym-subset", "--skip", "1", code=78, HF_HUB_OFFLINE="1")


def test_a_hub_that_does_not_answer_is_for_later(world: World):
    said = world.fetch(code=75, HF_ENDPOINT="http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached" in said and "HF_HUB_OFFLINE=1" in said and "Traceback" not in said
    world.hub.broken = 500
    assert "answered HTTP 500" in world.fetch(code=75)


def test_a_proxy_is_used(world: World):
    world.hub.add(R2E, FILES)
    proxy = world.environment["HF_ENDPOINT"]
    world.fetch(HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=proxy, NO_PROXY="127.0.0.1")
    assert world.ids() == names(0, 60)


def test_a_new_revision_is_taken_when_asked_for(world: World):
    old = world.hub.add(R2E, FILES)
    world.fetch()
    new = world.hub.add(R2E, {"data/train.parquet": parquet(rows(100, 105))})
    assert f"nothing to do: {world.folder / 'train.parquet'} has the 60 rows of {R2E}:train at {old}" in world.fetch()
    (world.folder / "train.parquet").unlink()
    world.fetch()
    assert world.manifest()["revision"] == old and world.ids() == names(0, 60), "what is mended must not change"
    world.fetch("train", "r2e-gym-subset", "--update")
    assert world.manifest()["revision"] == new and world.ids() == names(100, 105)
    world.fetch("train", f"r2e-gym-subset@{old}")
    assert world.manifest()["revision"] == old and world.ids() == names(0, 60)


def test_rows_of_somebody_else_are_not_written_over(world: World):
    world.hub.add(R2E, FILES)
    world.folder.mkdir()
    own = parquet(rows(0, 1))
    (world.folder / "train.parquet").write_bytes(own)
    assert "was not written by this program" in world.fetch(code=78)
    assert (world.folder / "train.parquet").read_bytes() == own


def test_rows_that_were_written_just_before_a_kill_are_known_as_ours(world: World):
    commit = world.hub.add(R2E, FILES)
    world.fetch()
    (world.folder / "manifest.json").unlink()
    assert data_rows.origin(world.folder / "train.parquet") == f"{R2E}:train@{commit}"
    world.fetch()
    assert world.manifest()["rows"] == 60


def test_ids_of_rows_without_instance_ids_are_their_images(tmp_path: Path):
    path = _file(tmp_path, [{"docker_image": f"owner/pandas:{n}", "repo_name": "pandas"} for n in range(5)])
    written = data_rows.write(
        [path], Selection(ids=frozenset({"owner/pandas:3", "owner/pandas:1"})), tmp_path / "out.parquet", "here"
    )
    assert (
        pq.read_table(tmp_path / "out.parquet")["docker_image"].to_pylist() == ["owner/pandas:1", "owner/pandas:3"]
        and written.images == 2
    )


def test_check_holds_the_folder_against_its_manifest(world: World):
    assert "has no manifest.json" in world.run("check", str(world.folder), code=78)
    world.hub.add(R2E, FILES)
    world.fetch()
    (world.folder / "eval.parquet").write_bytes(parquet(rows(0, 1)))
    assert "eval.parquet is not in manifest.json" in world.run("check", str(world.folder), code=1)
    (world.folder / "eval.parquet").unlink()
    world.fetch("eval", f"{R2E}:dev")
    assert "as its manifest says" in world.run("check", str(world.folder))
    (world.folder / "train.parquet").write_bytes(parquet(rows(0, 59)))
    assert "train.parquet is not the file that was written" in world.run("check", str(world.folder), code=1)
    (world.folder / "eval.parquet").unlink()
    assert "eval.parquet is missing" in world.run("check", str(world.folder), code=1)
    (world.folder / "manifest.json").write_text("{")
    assert "is not a manifest" in world.run("check", str(world.folder), code=78)


def test_two_runs_at_once_share_the_work(world: World):
    data = ballast(rows(0, 20), 2 << 20)
    world.hub.add(R2E, {"train.parquet": data})
    world.hub.slow_after = 1 << 20
    both = [
        world.start("fetch", str(folder), "train", "r2e-gym-subset")
        for folder in (world.folder, world.folder, world.folder.with_name("other"))
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], said
    assert world.sent() == len(data) and world.ids() == names(0, 20)
    assert any("nothing to do" in words for words in said[:2])


@contextmanager
def small_disk(folder: Path, size: int):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_and_nothing_is_lost(world: World, tmp_path: Path):
    world.hub.add(R2E, {"train.parquet": ballast(rows(0, 20), 6 << 20)})
    with small_disk(tmp_path / "small", 4 << 20):
        said = world.fetch(code=74, HF_HOME=str(tmp_path / "small"))
        assert "MB are to come; free some space there, or set HF_HOME" in said and world.seen() == set()
        world.folder = tmp_path / "small" / "rows"
        world.fetch("train", "r2e-gym-subset", "--limit", "3")
        assert "is full, train.parquet was not written" in world.fetch(code=74)
        assert world.ids() == names(0, 3) and world.run("check", str(world.folder))
        assert {path.name for path in world.folder.iterdir()} == {"train.parquet", "manifest.json", ".lock"}
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        said = world.fetch("eval", code=74)
        assert "choose a folder that can be written" in said and "Traceback" not in said


PEAK = """
import sys
from pathlib import Path
import pyarrow as pa
from setup.data import rows as data_rows
data_rows.GROUP_BYTES = 4 << 20  # small files can then show it
data_rows.write([Path(sys.argv[1])], data_rows.Selection(), Path(sys.argv[2]), "here")
print(pa.default_memory_pool().max_memory())
"""


def test_memory_does_not_grow_with_the_files(tmp_path: Path):
    def peak(count: int) -> int:
        path = _file(
            tmp_path,
            [{"instance_id": f"row-{n}", "text": random.Random(n).randbytes(50_000).hex()} for n in range(count)],
            row_group_size=50,
        )
        command = [sys.executable, "-c", PEAK, str(path), str(tmp_path / "out.parquet")]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == count
        return int(told)

    small = peak(300)
    assert 0 < peak(900) < 1.2 * small


def test_jsonl_columns_that_come_late_or_begin_with_nulls_keep_their_type(tmp_path: Path):
    lines = [
        {"instance_id": f"row-{n}", "late": None if n < 90 else "text", "when": "2024-01-02"}
        | ({"new": [n]} if n > 80 else {})
        for n in range(100)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    written = data_rows.write([tmp_path / "in.jsonl"], Selection(), tmp_path / "out.parquet", "here")
    assert written.columns["late"] == written.columns["when"] == "string" and written.images is None
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"instance_id": line["instance_id"], "late": line["late"], "when": line["when"], "new": line.get("new")}
        for line in lines
    ]
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": ')
    with pytest.raises(DatasetError, match="bad.jsonl cannot be read as jsonl"):
        data_rows.write([tmp_path / "bad.jsonl"], Selection(), tmp_path / "bad.parquet", "here")
    assert not (tmp_path / "bad.parquet").exists()


@pytest.mark.parametrize(
    "paths, card, splits",
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/dev_10pr_v1-00000-of-00001.parquet",
                "x.md",
            ],
            {},
            {"train": 2, "dev_10pr_v1": 1},
        ),
        (["train.jsonl", "train.parquet", "test.jsonl"], {}, {"train": 1, "test": 1}),
        (
            ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"],
            {},
            {"train": 2, "test": 1},
        ),
        (
            ["a/train/0000.parquet", "b/train/0000.parquet", "b/test/0000.parquet"],
            {},
            {"a/train": 1, "b/train": 1, "test": 1},
        ),
        (
            ["rows/x-1.parquet", "rows/x-2.parquet", "rows/old/x-3.parquet"],
            {"configs": [{"config_name": "c", "data_files": [{"split": "new", "path": ["rows/x-*"]}]}]},
            {"new": 2},
        ),
        (["rows/x.parquet", "y.parquet"], {"configs": [{"config_name": "c", "data_files": "**/x*"}]}, {"train": 1}),
        (["pool/train.parquet"], {"configs": [{"config_name": "c"}]}, {"train": 1}),
    ],
)
def test_files_are_found_by_card_or_by_name(paths: list[str], card: dict, splits: dict[str, int]):
    assert {name: len(files) for name, files in data_sources.splits_of(paths, card).items()} == splits


def test_every_short_name_means_a_dataset_and_a_split():
    for name, (dataset, split) in data_sources.NAMED.items():
        assert data_sources.parse(name) == data_sources.Source(dataset, split, None)
        assert data_sources.parse(f"{name}:other@refs/pr/1") == data_sources.Source(dataset, "other", "refs/pr/1")
