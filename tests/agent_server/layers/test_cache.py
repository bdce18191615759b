"""The cache of layers: made once by any number of processes, whole or absent, bounded in size."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_server.layers.cache import LayerCache

ROOT = Path(__file__).resolve().parents[3]
MAKE_SLOWLY = """
import sys, time
from pathlib import Path
from agent_server.layers.cache import LayerCache

def make(folder):
    Path(sys.argv[2]).open("a").write("made\\n")
    (folder / "half").write_text("half")
    time.sleep(float(sys.argv[3]))
    (folder / "whole").write_text("whole")

with LayerCache(Path(sys.argv[1]), 1 << 30).open("row", make) as layer:
    print((layer / "whole").read_text(), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "layers"


def filled(kib: int):
    def make(folder: Path) -> None:
        (folder / "content").write_bytes(os.urandom(kib << 10))

    return make


def never(folder: Path) -> None:
    raise AssertionError("the layer is there")


def make_slowly(folder: Path, log: Path, seconds: float) -> subprocess.Popen:
    command = [sys.executable, "-c", MAKE_SLOWLY, str(folder), str(log), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_a_layer_is_made_once(folder):
    cache = LayerCache(folder, 1 << 30)
    with cache.open("row", filled(1)) as layer:
        content = (layer / "content").read_bytes()
    with LayerCache(folder, 1 << 30).open("row", never) as layer:
        assert (layer / "content").read_bytes() == content


def test_of_processes_at_once_one_makes_it_and_the_others_wait(folder, tmp_path):
    processes = [make_slowly(folder, tmp_path / "log", 0.5) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["whole\n"] * 4
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_layer_that_cannot_be_made_leaves_nothing(folder):
    def fail(partial: Path) -> None:
        (partial / "half").write_text("half")
        raise ValueError("no commit")

    with pytest.raises(ValueError, match="no commit"), LayerCache(folder, 1 << 30).open("row", fail):
        pass
    assert names(folder) == set()


def test_what_a_killed_process_left_is_not_used(folder, tmp_path):
    killed = make_slowly(folder, tmp_path / "log", 60)
    deadline = time.monotonic() + 30
    while not (folder / "row.partial" / "half").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    with LayerCache(folder, 1 << 30).open("other", filled(1)):
        assert names(folder) == {"other"}  # making another layer removes it
    with LayerCache(folder, 1 << 30).open("row", filled(1)) as layer:
        assert {path.name for path in layer.iterdir()} == {"content", "bytes"}


def test_the_layers_that_were_not_used_for_longest_are_removed(folder):
    cache = LayerCache(folder, 250 << 10)
    for number, key in enumerate(("first", "second")):
        with cache.open(key, filled(100)):
            pass
        os.utime(folder / key, (number, number))
    with cache.open("first", never):  # used again
        pass
    with cache.open("third", filled(100)):
        assert names(folder) == {"first", "third"}


def test_a_layer_in_use_stays(folder):
    cache = LayerCache(folder, 1 << 10)
    with cache.open("used", filled(100)) as used:
        with cache.open("another", filled(100)), cache.open("used", never):
            assert names(folder) == {"used", "another"}
        with cache.open("last", filled(100)):
            assert names(folder) == {"used", "last"} and (used / "content").exists()


def test_makers_at_once_may_all_remove_layers(folder):
    """The cache has room for one layer."""

    def make(number: int) -> bool:
        with LayerCache(folder, 4 << 10).open(f"row{number}", filled(4)) as layer:
            return (layer / "content").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(100)))
    assert len(names(folder)) <= 8 and not [name for name in names(folder) if name.endswith(".partial")]
