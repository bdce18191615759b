"""setup/check.sh: passes on a sound machine, changes nothing, and each fault FAILs on its own line with a remedy."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.setup.conftest import ROOT, FakeMachine

IMAGE = "demo__quickstart__1.sif"
LINE = re.compile(r"(ok|warn|FAIL) +(\w+) +(.*)")
OF_BASH = [
    "system",
    "kernel",
    "namespaces",
    "apptainer",
    "squashfs",
    "work_dir",
    "image_dir",
    "tmp",
    "shm",
    "memory",
    "files",
    "processes",
    "proxies",
    "venv",
]
OF_PYTHON = ["settings", "agent", "rows", "images", "sandbox", "loops", "port", "clock"]
# What check.sh uses besides the BASICS of a FakeMachine.
PROGRAMS = ["apptainer", "stat", "timeout", "true", "unshare"]


class Table:
    """What a run of the script said, by the lines' names."""

    def __init__(self, ran: subprocess.CompletedProcess[str]):
        self.said, self.code = ran.stdout + ran.stderr, ran.returncode
        matches = [LINE.fullmatch(line) for line in ran.stdout.splitlines()]
        assert all(matches) and not ran.stderr, self.said
        self.names = [match[2] for match in matches]
        self.status = {match[2]: match[1] for match in matches}
        self.text = {match[2]: match[3] for match in matches}
        unexplained = [
            name for name in self.names if self.status[name] != "ok" and "   remedy: " not in self.text[name]
        ]
        assert not unexplained, self.said

    @property
    def failed(self) -> list[str]:
        return [name for name in self.names if self.status[name] == "FAIL"]


@pytest.fixture
def environment(tmp_path: Path, demo_cache: Path, word: str, free_port: int) -> dict[str, str]:
    """A sound node on the demo rows, with folders of its own for what the script might write."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    unset = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENT_SERVER_", "R2E_")) and "proxy" not in name.lower()
    }
    return unset | {
        "SWE_RL_CACHE": str(demo_cache.parent), "AGENT_SERVER_WORK_DIR": str(tmp_path / "work"), "AGENT_SERVER_PORT": str(free_port),
        "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "MARK": word,
    }  # fmt: skip


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def check(environment: dict[str, str], left_alive: Callable[[], list[int]]):
    """Runs the script; afterwards nothing of it may be left."""

    def check(*arguments: str, before: str = "", script: Path = ROOT / "setup/check.sh", **more: str) -> Table:
        command = ["bash", "-c", f'{before}\nexec bash "$0" "$@"', str(script), *arguments]
        return Table(
            subprocess.run(
                command, env=environment | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
            )
        )

    yield check
    assert left_alive() == []
    assert [path for name in ("HOME", "TMPDIR") for path in Path(environment[name]).iterdir()] == []
    assert not Path(environment["AGENT_SERVER_WORK_DIR"]).exists()


def test_a_sound_node_passes_with_a_session_and_stays_as_it_is(check):
    table = check("--session")
    assert (table.code, table.failed) == (0, []), table.said
    assert table.names == [*OF_BASH, *OF_PYTHON, "session"]
    assert table.status["sandbox"] == table.status["session"] == "ok"
    assert "2 model calls, reward 1, all stopped" in table.text["session"]


def assert_only(table: Table, name: str, found: str, remedy: str) -> None:
    assert (table.code, table.failed) == (1, [name]), table.said
    what, _, how = table.text[name].partition("   remedy: ")
    assert found in what and remedy in how, table.text[name]


def test_a_taken_port(check, free_port: int):
    with socket.create_server(("127.0.0.1", free_port)):
        assert_only(check(), "port", f"127.0.0.1:{free_port}", "set AGENT_SERVER_PORT")


def test_a_port_where_an_agent_server_listens(check, free_port: int):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"limits": {}}')

        def log_message(self, *_):
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", free_port), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        table = check()
        server.shutdown()
    assert table.status["port"] == "ok" and "an agent server listens" in table.text["port"]


def test_a_missing_image(check, tmp_path: Path, demo_cache: Path):
    table = check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(tmp_path / "tmp"))
    assert_only(table, "images", f"demo/quickstart:1 ({IMAGE})", "into R2E_SIF_DIR")
    assert table.status["sandbox"] == "ok", "another image is tried then"


def test_a_broken_image(check, tmp_path: Path, demo_cache: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / IMAGE).write_text("<html>404 not found</html>")
    assert_only(
        check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(tmp_path / "images")),
        "images",
        "not a SIF file",
        "fetch or build",
    )


def test_rows_that_cannot_be_read(check, tmp_path: Path, demo_cache: Path):
    shutil.copytree(demo_cache / "tasks", tmp_path / "rows")
    (tmp_path / "rows" / "train.parquet").write_bytes(b"PAR1 half of a download")
    table = check(R2E_DATA_PATH=str(tmp_path / "rows"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", "train.parquet cannot be read", "give R2E_DATA_PATH readable rows")
    assert table.status["images"] == "warn"


def test_a_row_that_cannot_be_graded(check, tmp_path: Path, demo_cache: Path):
    row = parquet.read_table(demo_cache / "tasks" / "train.parquet").to_pylist()[0]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"FAIL_TO_PASS": []}) + "\n")
    table = check(R2E_DATA_PATH=str(tmp_path / "rows.jsonl"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", f"row {row['instance_id']!r}: its FAIL_TO_PASS is empty", "docs/datasets.md")


def test_rows_that_are_not_there(check, tmp_path: Path, demo_cache: Path):
    table = check(R2E_DATA_PATH=str(tmp_path / "nowhere"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", "nowhere does not exist", "R2E_DATA_PATH")
    assert table.status["settings"] == "ok"


def test_a_setting_with_a_slip(check):
    assert_only(check(AGENT_SERVER_PROT="8600"), "settings", "did you mean AGENT_SERVER_PORT?", "correct the variable")


def test_an_agent_that_cannot_be_loaded(check):
    assert_only(check(AGENT_SERVER_AGENT="nowhere:Agent"), "agent", "No module named 'nowhere'", "AGENT_SERVER_AGENT")


def test_too_few_open_files(check):
    assert_only(check(before="ulimit -Sn 256"), "files", "256 open files", "ulimit -n 65536")


def test_a_full_disk(check, tmp_path: Path):
    """Also a work directory that would be made: the free space is that of the file system it would lie on."""
    small = tmp_path / "small"
    small.mkdir()
    script = tmp_path / "in_a_small_world.sh"
    script.write_text(f'mount -t tmpfs -o size=8m none {small} && exec bash {ROOT}/setup/check.sh "$@"\n')
    table = check(
        before='exec unshare --mount bash "$0" "$@"', script=script, AGENT_SERVER_WORK_DIR=str(small / "a" / "work")
    )
    assert_only(table, "work_dir", "8 MiB free", "AGENT_SERVER_WORK_DIR")


@pytest.fixture
def programs(fake_machine: FakeMachine) -> FakeMachine:
    fake_machine.add(*PROGRAMS)
    return fake_machine


def test_no_apptainer(check, programs: FakeMachine):
    (programs.programs / "apptainer").unlink()
    table = check(PATH=str(programs.programs))
    assert_only(table, "apptainer", "not on the PATH", "bash setup/apptainer.sh")
    assert "not tried" in table.text["sandbox"]


def test_an_apptainer_that_is_too_old(check, programs: FakeMachine):
    programs.stub(
        "apptainer", f'test "$1" = --version && echo apptainer version 1.1.9 || exec {shutil.which("apptainer")} "$@"'
    )
    assert_only(check(PATH=str(programs.programs)), "apptainer", "1.1.9", "1.2 or later")


def test_an_apptainer_that_runs_no_sandbox(check, programs: FakeMachine):
    programs.stub(
        "apptainer",
        'test "$1" = --version && echo apptainer version 1.4.5 || { echo FATAL: no namespaces here >&2; exit 255; }',
    )
    assert_only(check(PATH=str(programs.programs)), "sandbox", "FATAL: no namespaces here", "namespaces")


def test_namespaces_that_are_refused(check, programs: FakeMachine):
    programs.stub("unshare", "echo unshare: unshare failed: Operation not permitted >&2; exit 1")
    assert_only(check(PATH=str(programs.programs)), "namespaces", "Operation not permitted", "start it privileged")


def test_another_user_needs_user_namespaces(check, programs: FakeMachine):
    programs.add("squashfuse")
    programs.stub("id", "echo 1000")
    programs.stub("find", "")  # no setuid starter
    programs.stub("unshare", "echo unshare: unshare failed: Operation not permitted >&2; exit 1")
    assert_only(
        check(PATH=str(programs.programs)),
        "namespaces",
        "no setuid starter, and user namespaces are refused",
        "sysctl -w",
    )


def test_another_user_needs_squashfuse(check, programs: FakeMachine):
    programs.stub("id", "echo 1000")
    programs.stub("find", "")  # no setuid starter
    assert_only(
        check(PATH=str(programs.programs)),
        "squashfs",
        "squashfuse is missing, and the kernel's is missing or needs root",
        "bash setup/tools.sh",
    )


def test_without_packages_it_says_how_to_get_them(check, tmp_path: Path):
    shutil.copytree(ROOT / "setup", tmp_path / "checkout" / "setup")
    script = tmp_path / "checkout" / "setup" / "check.sh"
    table = check(script=script)
    assert_only(table, "venv", "there is nothing in", "bash setup/setup.sh agents")
    assert {table.status[name] for name in OF_PYTHON} == {"warn"}
    assert check("--session", script=script).failed == ["venv", "session"]


def test_packages_that_are_broken_are_named(check, tmp_path: Path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "setup", checkout / "setup")
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(
        f'#!/bin/sh\nexec {ROOT}/.venv/bin/python -S "$@"\n'
    )  # -S: without its packages
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    assert_only(
        check(script=checkout / "setup" / "check.sh"),
        "venv",
        "No module named 'minisweagent'",
        "bash setup/setup.sh agents",
    )


def test_a_bare_debian_gets_every_line(tmp_path: Path, demo_cache: Path):
    """Inside the demo image: Debian 12 without Apptainer and without this project's packages."""
    shutil.copytree(ROOT / "setup", tmp_path / "checkout" / "setup")
    options = [
        "--containall",
        "--cleanenv",
        "--no-home",
        "--no-privs",
        "--bind",
        f"{tmp_path}/checkout:/checkout:ro",
        str(demo_cache / "images" / IMAGE),
    ]
    ran = subprocess.run(
        ["apptainer", "--silent", "exec", *options, "bash", "/checkout/setup/check.sh"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    table = Table(ran)
    assert table.code == 1 and {"apptainer", "venv"} <= set(table.failed), table.said
    assert table.names == [*OF_BASH, *OF_PYTHON]
    assert (table.status["system"], table.status["kernel"]) == ("ok", "ok")


def test_a_demo_that_is_not_built_fails_only_where_it_is_asked_for(check, tmp_path: Path):
    table = check("--session", SWE_RL_CACHE=str(tmp_path / "empty"))
    assert_only(table, "session", "demo's rows are not there", "bash setup/demo/image.sh")
    assert table.status["rows"] == table.status["sandbox"] == "warn"


def test_a_session_whose_right_fix_earns_nothing_fails(check, tmp_path: Path, demo_cache: Path):
    demo = tmp_path / "cache" / "demo"
    (demo / "tasks").mkdir(parents=True)
    (demo / "images").symlink_to(demo_cache / "images")
    row = parquet.read_table(demo_cache / "tasks" / "train.parquet").to_pylist()[0]
    for mode in ("train", "eval"):
        (demo / "tasks" / f"{mode}.jsonl").write_text(
            json.dumps(row | {"FAIL_TO_PASS": [*row["FAIL_TO_PASS"], f"{row['file']}::test_nowhere"]}) + "\n"
        )
    assert_only(
        check("--session", SWE_RL_CACHE=str(demo.parent)),
        "session",
        f"the right fix of {row['instance_id']} earned 0.0",
        "build the demo anew",
    )


def test_a_proxy_that_takes_loopback_is_a_warning(check):
    table = check(HTTP_PROXY="http://proxy:3128", NO_PROXY="example.org")
    assert (table.code, table.status["proxies"]) == (0, "warn") and "export NO_PROXY=127.0.0.1" in table.text["proxies"]
    assert check(HTTP_PROXY="http://proxy:3128", NO_PROXY="example.org, localhost").status["proxies"] == "ok"


def test_a_leaked_loop_device_is_named_and_left(check, tmp_path: Path, demo_cache: Path):
    images = tmp_path / "images"
    images.mkdir()
    (images / IMAGE).symlink_to(demo_cache / "images" / IMAGE)
    (images / "other.sif").write_bytes(bytes(1 << 20))
    device = subprocess.run(
        ["losetup", "--find", "--show", str(images / "other.sif")], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        table = check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(images))
        assert (table.code, table.status["loops"]) == (0, "warn") and f"losetup -d {device}" in table.text["loops"], (
            table.said
        )
        assert Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip() == str(
            images / "other.sif"
        )
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextmanager
def answering(ahead_s: float):
    """A web server whose clock is so far ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response_only(404)
            self.send_header("Date", formatdate(time.time() + ahead_s, usegmt=True))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_clocks_are_compared_with_who_is_named(check):
    with answering(3600) as gateway, answering(0) as agent_server:
        table = check("--gateway", gateway, AGENT_SERVER_URL=agent_server)
    assert (table.code, table.status["clock_gw"], table.status["clock_agent"]) == (0, "warn", "ok"), table.said
    assert re.search(r"\+(3599|3600|3601) s", table.text["clock_gw"])


def test_a_check_that_is_ended_ends_its_server(
    environment: dict[str, str], left_alive: Callable[[], list[int]], word: str
):
    process = subprocess.Popen(
        ["bash", str(ROOT / "setup/check.sh"), "--session"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (server_at_work := any(TMP_WORK in mark for mark in environments(word))) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert server_at_work and left_alive() == []
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


TMP_WORK = b"/swe-rl-check-"


def environments(word: str) -> list[bytes]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in (content := entry.read_bytes()):
                found.append(content)
        except OSError:
            continue
    return found


def test_wrong_arguments_are_refused():
    ran = subprocess.run(["bash", str(ROOT / "setup/check.sh"), "--sesion"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "--session" in ran.stderr and ran.stdout == ""
