"""Services: health, errors, and the end of the whole process tree on stop, on exit and when the trainer is killed."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client.errors import ConfigError, ModelUnreachable, ServerUnreachable
from trainer.services.service import Service, free_port, require_free_port

ROOT = Path(__file__).parents[3]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def running(pid: int) -> bool:
    """True while `pid` is a live process; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def pids(path: Path, count: int) -> list[int]:
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= count)
    return [int(pid) for pid in path.read_text().split()]


def shell(tmp_path: Path, script: str, health=lambda: True, **options) -> Service:
    return Service(
        "demo", ["bash", "-c", script], ENV | {"DIR": str(tmp_path)}, tmp_path / "demo.log", health, **options
    )


# A child in the group, one in a session of its own, and an orphan that detached itself twice; all ignore SIGTERM.
STUBBORN_TREE = """
trap '' TERM
echo $$ >> $DIR/pids
sleep 1000 & echo $! >> $DIR/pids
setsid bash -c 'trap "" TERM; echo $$ >> $DIR/pids; sleep 1000' &
(setsid bash -c 'setsid bash -c "trap \\"\\" TERM; echo \\$\\$ >> $DIR/pids; sleep 1000" &' &)
while true; do sleep 1; done
"""


def test_stop_ends_a_tree_that_ignores_sigterm_and_detaches(tmp_path):
    service = shell(tmp_path, STUBBORN_TREE, stop_grace_s=0.3)
    service.start()
    tree = pids(tmp_path / "pids", 4)
    assert all(running(pid) for pid in tree) and service.alive()
    service.stop()
    assert not any(running(pid) for pid in tree) and not service.alive()
    service.stop()  # repeatable


def test_stop_lets_a_server_clean_up_first(tmp_path):
    service = shell(
        tmp_path, "trap 'echo bye > $DIR/bye; exit 0' TERM; echo > $DIR/up; while true; do sleep 0.05; done"
    )
    service.start()
    wait_until((tmp_path / "up").exists)
    service.stop()
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_processes_may_clean_up_after_their_server(tmp_path):
    """multiprocessing's resource tracker does: it unlinks the shared memory of a server that has ended."""
    cleaner = "(while kill -0 $PARENT 2>/dev/null; do sleep 0.01; done; echo tidy > $DIR/tidy) &"
    service = shell(tmp_path, f"PARENT=$$; {cleaner} echo > $DIR/up; exec sleep 1000")
    service.start()
    wait_until((tmp_path / "up").exists)
    service.stop()
    assert (tmp_path / "tidy").read_text() == "tidy\n"


def test_children_do_not_outlive_a_server_that_ends_by_itself(tmp_path):
    service = shell(tmp_path, "setsid sleep 1000 & echo $! > $DIR/pids; exit 3")
    service.start()
    (child,) = pids(tmp_path / "pids", 1)
    wait_until(lambda: not service.alive())
    assert not running(child)
    with pytest.raises(ServerUnreachable, match="is not running"):
        service.check()
    service.stop()


def test_a_killed_trainer_leaves_nothing(tmp_path):
    program = f"""
import os, time
from pathlib import Path
from trainer.services.service import Service
tree = {STUBBORN_TREE!r}
env = dict(os.environ, DIR={str(tmp_path)!r})
Service("demo", ["bash", "-c", tree], env, Path({str(tmp_path / "demo.log")!r}), lambda: True, stop_grace_s=0.3).start()
time.sleep(1000)
"""
    trainer = subprocess.Popen([sys.executable, "-c", program], env=ENV)
    try:
        tree = pids(tmp_path / "pids", 4)
    finally:
        trainer.kill()
        trainer.wait()
    wait_until(lambda: not any(running(pid) for pid in tree))


def test_a_server_that_is_not_ready_is_reported_with_its_log_and_boundary(tmp_path):
    (tmp_path / "demo.log").write_text("an older run's line\n")
    service = shell(tmp_path, "echo cannot bind >&2; exit 7", health=lambda: False, unreachable=ModelUnreachable)
    service.start()
    with pytest.raises(ModelUnreachable, match="exit code 7(?s:.*)cannot bind") as caught:
        service.wait_ready(20)
    assert "older run" not in str(caught.value)
    service.stop()

    service = shell(tmp_path, "echo still loading; sleep 1000", health=lambda: False)
    service.start()
    with pytest.raises(ServerUnreachable, match="within 0.5 s(?s:.*)still loading"):
        service.wait_ready(0.5)
    service.stop()


def test_a_missing_program_is_named(tmp_path):
    service = Service("demo", ["/no/such/program"], ENV, tmp_path / "demo.log", lambda: False)
    service.start()
    with pytest.raises(ServerUnreachable, match="exit code 127(?s:.*)cannot start /no/such/program"):
        service.wait_ready(20)
    service.stop()


def test_health_by_url_and_a_port_that_is_taken(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    service = Service(
        "demo", [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], ENV, tmp_path / "demo.log", url
    )
    service.start()
    try:
        service.wait_ready(20)
        second = Service("second", ["sleep", "1000"], ENV, tmp_path / "second.log", url)
        with pytest.raises(ConfigError, match=f"second needs port {port}"):
            second.start()
        assert not second.alive()
    finally:
        service.stop()
    require_free_port("demo", "127.0.0.1", port)


def test_a_server_that_answers_503_is_not_ready(tmp_path):
    class Unready(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503)

        def log_message(self, *_):
            pass

    port = free_port()
    service = Service("demo", ["sleep", "1000"], ENV, tmp_path / "demo.log", f"http://127.0.0.1:{port}/")
    service.start()
    with http.server.HTTPServer(("127.0.0.1", port), Unready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ServerUnreachable, match="was not ready"):
                service.wait_ready(0.5)
        finally:
            server.shutdown()
            thread.join()
            service.stop()


def test_the_exit_code_of_a_signalled_server(tmp_path):
    service = shell(tmp_path, "kill -SEGV $$", health=lambda: False)
    service.start()
    with pytest.raises(ServerUnreachable, match=f"exit code {128 + signal.SIGSEGV}"):
        service.wait_ready(20)
    service.stop()
