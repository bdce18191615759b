"""Checkpoints: visible ones are whole, also after the writer fails or is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.checkpoints import Checkpoints, replace_directory

ROOT = Path(__file__).parents[2]


class FileActor:
    """A fake actor that writes small files and can fail."""

    def __init__(self, content: str = "weights", fail: Exception | None = None):
        self._content, self._fail = content, fail

    def save_weights(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "model.safetensors").write_text(self._content)

    def save_state(self, directory: Path) -> None:
        if self._fail:
            raise self._fail
        directory.mkdir()
        (directory / "actor.pt").write_text(self._content)


# Saves step 2 without end: one file after another, each printed.
SLOW_SAVE = """
import itertools, sys
from pathlib import Path
from trainer.checkpoints import Checkpoints

class SlowActor:
    def save_weights(self, directory):
        directory.mkdir()
        for number in itertools.count():
            (directory / str(number)).write_text("x" * 1000)
            print(number, flush=True)

Checkpoints(Path(sys.argv[1])).save(2, SlowActor())
"""


def test_without_checkpoints_there_is_no_latest(tmp_path):
    assert Checkpoints(tmp_path / "absent").latest() is None


def test_the_newest_is_found_and_older_ones_are_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (3, 1_000_000, 12):  # by number, not by name or age
        saved = checkpoints.save(step, FileActor(f"weights {step}"))
        assert (saved.weights / "model.safetensors").read_text() == f"weights {step}"
    assert [c.directory.name for c in checkpoints.all()] == ["step_000012", "step_1000000"]
    assert checkpoints.latest().step == 1_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000012", "step_1000000"]


def test_saving_the_same_step_again_replaces_it(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, FileActor("first"))
    checkpoints.save(1, FileActor("second"))
    assert (checkpoints.latest().state / "actor.pt").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_a_failing_save_leaves_the_checkpoints_as_they_were(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, FileActor("first"))
    for step in (1, 2):
        with pytest.raises(OSError, match="disk full"):
            checkpoints.save(step, FileActor("second", fail=OSError("disk full")))
    assert (checkpoints.latest().state / "actor.pt").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_writer_killed_in_the_middle_leaves_no_checkpoint(tmp_path, signum):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, FileActor())
    writer = subprocess.Popen([sys.executable, "-c", SLOW_SAVE, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with writer:
        assert writer.stdout.readline() == "0\n"
        os.kill(writer.pid, signum)
    assert any(p.name.startswith(".") for p in tmp_path.iterdir()), "it had begun"
    assert [c.step for c in checkpoints.all()] == [1]
    checkpoints.save(3, FileActor())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000001", "step_000003"]


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest"])
def test_a_damaged_checkpoint_is_left_out_with_a_warning(tmp_path, caplog, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, FileActor())
    newest = checkpoints.save(2, FileActor())
    match damage:
        case "truncated":
            os.truncate(newest.weights / "model.safetensors", 3)
        case "missing":
            (newest.state / "actor.pt").unlink()
        case "no manifest":
            (newest.directory / "manifest.json").unlink()
    assert checkpoints.latest().step == 1
    assert str(newest.directory) in caplog.text


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_replace_directory_leaves_the_old_one_when_filling_fails(tmp_path):
    target = tmp_path / "weights"
    with replace_directory(target) as new:
        (new / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replace_directory(target) as new:
        (new / "a").write_text("new")
        raise KeyboardInterrupt
    assert (target / "a").read_text() == "old"
    with replace_directory(target) as new:
        (new / "b").write_text("new")
    assert [p.name for p in target.iterdir()] == ["b"]
    assert [p.name for p in tmp_path.iterdir()] == ["weights"]
