"""Whole-file writes: old content or new content, and no temporary file afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from client.atomic_write import replacing, write_text


def test_the_content_is_replaced_whole(tmp_path: Path):
    file = tmp_path / "report.json"
    write_text(file, "old")
    write_text(file, "néw")
    assert file.read_bytes() == "néw".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_keeps_the_old_content(tmp_path: Path):
    file = tmp_path / "report.json"
    write_text(file, "old")
    with pytest.raises(ValueError), replacing(file) as temporary:
        temporary.write_text("half")
        raise ValueError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_writer_that_wrote_nothing_is_an_error(tmp_path: Path):
    file = tmp_path / "report.json"
    with pytest.raises(FileNotFoundError), replacing(file):
        pass
    assert not file.exists()


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path):
    file = tmp_path / "report.json"
    write_text(file, "old")
    script = (
        "import os, signal, sys; from pathlib import Path; from client.atomic_write import replacing\n"
        "with replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script, str(file)], cwd=root, timeout=60).returncode == -9
    assert file.read_text() == "old"
