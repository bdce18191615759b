"""Sandboxes of killed workers: the next server of the same work directory kills them, and no others."""

import json
import os
import signal
import tempfile
import time

import pytest

from agent_server.config import Settings
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.orphans import LINK_PREFIX, RECORD_FILE, STALE_LINK_S, reclaim_orphans, remove_stale_links
from agent_server.sandboxes.processes import descendants, kill, read_process
from tests.agent_server.conftest import DEMO, FIX, eventually, read_or_empty
from tests.agent_server.test_recovery import kill_server


def test_only_stale_folders_of_links_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("old", "new", "holding"):
        (tmp_path / f"{LINK_PREFIX}{name}").mkdir()
        (tmp_path / f"{LINK_PREFIX}{name}" / "demo.sif").symlink_to("/nowhere.sif")
    (tmp_path / f"{LINK_PREFIX}holding" / "file").write_text("of another program")
    for name in ("old", "holding"):
        os.utime(tmp_path / f"{LINK_PREFIX}{name}", (0, time.time() - STALE_LINK_S - 60))
    remove_stale_links()
    assert sorted(path.name.removeprefix(LINK_PREFIX) for path in tmp_path.iterdir()) == ["holding", "new"]
    assert (tmp_path / f"{LINK_PREFIX}holding" / "file").exists() and (
        tmp_path / f"{LINK_PREFIX}new" / "demo.sif"
    ).is_symlink()


def lives(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state != "Z"


def sleeps(worker: int) -> bool:
    """Whether a session's `sleep` runs below its worker."""
    commands = (read_or_empty(f"/proc/{process.pid}/cmdline") for process in descendants(worker)) if worker else ()
    return any(command.startswith(b"sleep\0") for command in commands)


@pytest.fixture
def start(demo_image):
    """A factory of sandboxes with sleeping processes, recorded in the given scratch folder."""
    started = []

    def start(scratch):
        scratch.mkdir(parents=True)
        sandbox = apptainer.start(demo_image, scratch=scratch, env={}, start_timeout_s=30)
        started.append(sandbox)
        sandbox.run("sleep 1000 & setsid sleep 1000 &", cwd="/", timeout_s=5)
        return sandbox

    yield start
    for sandbox in started:
        sandbox.close()


def settings_for(folder) -> Settings:
    return Settings(data_path=DEMO / "tasks", sif_dir=DEMO / "images", work_dir=folder)


def test_only_inactive_sandboxes_of_this_owner_are_killed(tmp_path, start):
    ours, theirs = settings_for(tmp_path / "ours"), settings_for(tmp_path / "theirs")
    left_over, active, neighbour = (
        start(ours.scratch_dir / "left.1"),
        start(ours.scratch_dir / "active.2"),
        start(theirs.scratch_dir / "left.1"),
    )
    (ours.scratch_dir / "empty.1").mkdir()
    inside = [process.pid for process in descendants(left_over.pid)]
    assert reclaim_orphans(ours, {"active.2"}) == ["empty.1", "left.1"]
    eventually(lambda: not any(map(lives, inside)), what="all of the orphan gone")
    assert [folder.name for folder in ours.scratch_dir.iterdir()] == ["active.2"]
    for sandbox in (active, neighbour):
        assert sandbox.run("echo alive", cwd="/", timeout_s=5).output == "alive\n"
        assert len(descendants(sandbox.pid)) == 3  # shell, two asleep
    assert reclaim_orphans(ours, {"active.2"}) == []


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", '{"boot": "another", "processes": [[PID, TICKS]]}', '{"boot": "BOOT", "processes": [[PID, 1]]}'],
)
def test_a_record_that_does_not_match_kills_no_process(tmp_path, start, record):
    ours = settings_for(tmp_path / "ours")
    sandbox = start(tmp_path / "elsewhere")
    written = json.loads((tmp_path / "elsewhere" / RECORD_FILE).read_text())
    folder = ours.scratch_dir / "left.1"
    folder.mkdir(parents=True)
    pid, ticks = written["processes"][0]
    (folder / RECORD_FILE).write_text(
        record.replace("PID", str(pid)).replace("TICKS", str(ticks)).replace("BOOT", written["boot"])
    )
    assert reclaim_orphans(ours, set()) == ["left.1"]
    assert sandbox.run("echo alive", cwd="/", timeout_s=5).output == "alive\n"


def test_the_next_server_cleans_up_after_a_killed_server_and_worker(own_server, model, tmp_path):
    server = own_server()
    # On a busy machine this test outlasts the usual limit of a command, which would end the neighbour's.
    neighbour = own_server(tmp_path / "another owner", AGENT_SERVER_COMMAND_TIMEOUT_S="300")
    active = server.create(model, [f"sleep 8\n{FIX}"], key="active through it all")
    orphaned = server.create(model, ["sleep 1000"], key="orphaned")
    foreign = neighbour.create(model, ["sleep 1000"], key="another owner's")
    for owner, session in ((server, active), (server, orphaned), (neighbour, foreign)):
        eventually(lambda o=owner, s=session: sleeps(o.worker(s)), what="the session's command")
    worker = server.worker(orphaned)
    record = json.loads((server.work_dir / "scratch" / f"{orphaned}.1" / RECORD_FILE).read_text())
    left = [pid for pid, _ in record["processes"]]
    (watchdog,) = [
        pid for pid in server.session_processes(worker) if read_process(pid).parent == worker and pid not in left
    ]
    theirs = neighbour.session_processes(neighbour.worker(foreign))
    kill_server(server)
    os.kill(worker, signal.SIGSTOP)  # it would end its sandbox when the watchdog is gone, as the watchdog does
    os.kill(watchdog, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.3)  # long enough for a sandbox that ends with its worker to end
    assert any(map(lives, left)), "the sandbox ended with its worker, so this test has nothing to reclaim"

    again = own_server(
        server.work_dir, **{n: v for n, v in server.environment.items() if n.startswith("AGENT_SERVER_")}
    )
    eventually(lambda: not any(map(lives, left)), what="the orphaned sandbox gone")
    eventually(lambda: not list((server.work_dir / "scratch").glob(f"{orphaned}*")), what="its scratch folder gone")
    assert again.client.get(orphaned).error["code"] == "worker_lost"
    assert again.client.wait(active, timeout_s=30).reward == 1.0
    assert theirs and all(map(lives, theirs))
    neighbour.client.cancel(foreign)
    assert neighbour.client.wait(foreign, timeout_s=10).status == "cancelled"
    for pid in filter(lives, left):  # after a failure only
        kill(pid)
