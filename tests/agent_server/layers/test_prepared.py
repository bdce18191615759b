"""Prepared repositories under real sandboxes: as if each had just been prepared, and apart from each other."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_server.config import Settings
from agent_server.grading.placement import AgentSandbox, FreshSandbox
from agent_server.layers.key import layer_key
from agent_server.layers.prepared import can_prepare, prepared_repository
from agent_server.tasks.catalog import Catalog
from agent_server.worker.task_sandbox import start_task_sandbox
from tests.agent_server.conftest import DEMO, FIX, ROOT, TASK, launch, shut_down
from tests.agent_server.grading.grading_bench import run

# The state of the repository that git and the agent can see.
STATE = """git log --all --format=%s; git status --short; cat .git/info/exclude
find . -path '*/objects/*' -o -print | sort"""


class Rows:
    """Sandboxes of the demo's first row on its layer, closed at the end."""

    def __init__(self, folder: Path, images: Path = DEMO / "images", **settings):
        self.settings = Settings(data_path=DEMO / "tasks", sif_dir=images, work_dir=folder, **settings)
        _, self.dataset, self.task = Catalog(DEMO / "tasks").get_row("train", TASK)
        self.scratch, self.made = folder / "scratch", 0
        self.scratch.mkdir(parents=True)

    @contextmanager
    def start(self, layer: Path | None = None, make_layer: Path | None = None):
        self.made += make_layer is not None
        sandbox = start_task_sandbox(self.settings, self.task, self.scratch, layer=layer, make_layer=make_layer)
        try:
            yield sandbox
        finally:
            sandbox.close()

    @contextmanager
    def prepared(self, strategy=None):
        strategy = strategy or FreshSandbox()
        start = lambda folder: self.start(make_layer=folder)  # noqa: E731
        with prepared_repository(self.settings, self.dataset, self.task, strategy, start) as repository:
            strategy.use_prepared(repository.state)
            with self.start(repository.layer) as sandbox:
                yield sandbox


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path / "work")


def test_the_agent_sees_what_it_saw_without_a_layer(rows):
    with rows.start() as sandbox:
        FreshSandbox().prepare(rows.dataset, rows.task, sandbox)
        expected = run(sandbox, STATE).output
    with rows.prepared() as sandbox:
        assert run(sandbox, STATE).output.splitlines() == expected.splitlines() and expected.startswith("base\n")


def test_sessions_of_a_row_share_the_layer_and_nothing_else(rows):
    with rows.prepared() as first:
        clean = run(first, "git status --short").output
        edit = "echo x >new; rm *.py; git add -A && git -c user.name=a -c user.email=b commit -qm mine"
        assert run(first, edit).returncode == 0
        with rows.prepared() as beside:
            assert run(beside, "git log --format=%s").output == "base\n"
    with rows.prepared() as later:
        assert run(later, "git log --format=%s; git status --short; ls new").output.startswith(f"base\n{clean}ls: ")
    assert rows.made == 1


def test_the_sandbox_shows_no_path_of_the_layer(rows):
    with rows.prepared() as sandbox:
        shown = run(sandbox, "cat /proc/self/mountinfo /proc/*/cmdline; env; mount").output
        assert str(rows.settings.work_dir) not in shown and "overlay" in shown


def test_files_of_a_layer_do_not_count_against_the_sandbox(rows):
    with rows.prepared() as sandbox:
        in_use = run(sandbox, "df --output=used / | tail -n 1").output
        assert int(in_use) < 100  # KiB


def test_grading_in_the_agents_sandbox_needs_what_the_preparation_found(rows):
    for _ in range(2):
        strategy = AgentSandbox()
        with rows.prepared(strategy) as sandbox:
            run(sandbox, f"{FIX}\nrm -rf tests; echo x >conftest.py")
            strategy.restore_base(rows.dataset, rows.task, sandbox)
            assert run(sandbox, "git status --short; ls tests | wc -l; ls conftest.py").output.splitlines()[-2] != "0"
    assert rows.made == 1


def test_another_image_is_prepared_anew(rows, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    [image] = (DEMO / "images").glob("*.sif")
    shutil.copy(image, images)
    first = Rows(tmp_path / "first", images)
    before = layer_key(first.settings, first.dataset, first.task)
    assert before == layer_key(first.settings, first.dataset, first.task)
    os.utime(images / image.name, (1, 1))
    assert layer_key(first.settings, first.dataset, first.task) != before


def test_where_it_cannot_be_prepared_once(tmp_path):
    assert can_prepare(Rows(tmp_path / "1").settings, Rows(tmp_path / "2").task)
    assert not can_prepare(Rows(tmp_path / "3", prepared_mib=0).settings, Rows(tmp_path / "4").task)
    assert not can_prepare(Rows(tmp_path / "5", setup_command="true").settings, Rows(tmp_path / "6").task)


def test_a_preparation_that_fails_says_why_and_leaves_nothing(rows, monkeypatch):
    def refuse(*_):
        raise subprocess.SubprocessError("no commit")

    monkeypatch.setattr(FreshSandbox, "prepare", refuse)
    with pytest.raises(subprocess.SubprocessError, match="no commit"), rows.prepared():
        pass
    assert [path.suffix for path in rows.settings.prepared_dir.iterdir()] == [".lock"]


@pytest.fixture
def overlay(tmp_path):
    """A folder on an overlay, as in a container: its file system cannot be written by another overlay."""
    folders = {name: tmp_path / name for name in ("lower", "upper", "work", "merged")}
    for folder in folders.values():
        folder.mkdir()
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**folders)
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(folders["merged"])], check=True)
    yield folders["merged"]
    subprocess.run(["umount", str(folders["merged"])], check=True)


def test_a_session_prepares_its_own_repository_where_no_layer_can_be_made(overlay, model):
    server = launch(overlay / "work")
    try:
        view = server.run(model, [FIX])
    finally:
        shut_down(server)
    assert (view.status, view.reward) == ("completed", 1.0)
    log = "".join(path.read_text() for path in (server.work_dir / "logs").glob("*.log"))
    assert f"the repository of {TASK} is prepared for one session alone" in log
    assert [path for path in (server.work_dir / "prepared").iterdir() if path.is_dir()] == []


def test_unknown_rows_are_not_prepared(tmp_path):
    settings = {"R2E_DATA_PATH": DEMO / "tasks", "R2E_SIF_DIR": DEMO / "images", "AGENT_SERVER_WORK_DIR": tmp_path}
    command = [sys.executable, "-m", "agent_server", "prepare", "--ids", "no-such-row"]
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no-such-row" in done.stderr


def test_rows_are_prepared_ahead(tmp_path):
    settings = {"R2E_DATA_PATH": DEMO / "tasks", "R2E_SIF_DIR": DEMO / "images", "AGENT_SERVER_WORK_DIR": tmp_path}
    command = [sys.executable, "-m", "agent_server", "prepare", "--ids", TASK, "--jobs", "1"]
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, f"[1/1] {TASK}: ok\n"), done.stderr
    environment |= {"AGENT_SERVER_SETUP_COMMAND": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "each session prepares it" in done.stdout
    assert len([path for path in (tmp_path / "prepared").iterdir() if path.is_dir()]) == 1
