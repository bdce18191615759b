"""Sandbox limits in sessions of a real agent server."""

import uuid

import pytest

from tests.agent_server.conftest import FILE, FIX, ROOT, launch, shut_down
from tests.agent_server.sandboxes.exceed_limits import CPU_BURNER, DISK_FILLER, FORK_BOMB, MEMORY_HOG


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    """A server with small limits, and a mark in its environment that must not be visible inside."""
    running = launch(
        tmp_path_factory.mktemp("small") / "work",
        AGENT_SERVER_SANDBOX_MEMORY_MIB="200",
        AGENT_SERVER_SANDBOX_PROCESSES="50",
        AGENT_SERVER_SANDBOX_DISK_MIB="60",
        AGENT_SERVER_SANDBOX_CPU_S="3",
        MARK="mark-of-the-host",
        APPTAINERENV_SMUGGLED="mark-of-the-host",
        APPTAINER_BIND=f"{ROOT}:/mnt",
    )
    yield running
    shut_down(running)


@pytest.mark.parametrize(
    ("program", "limit"),
    [(MEMORY_HOG, "memory"), (FORK_BOMB, "processes"), (DISK_FILLER.format("/tmp"), "disk")],
    ids=["memory", "processes", "disk"],
)
def test_the_model_sees_the_limit_and_continues(small_server, model, program, limit):
    key = f"limit {limit}"
    view = small_server.run(model, [program, FIX], key=key)
    seen = model.requests[key][1]["messages"][-1]["content"]
    assert "<exception>" in seen and limit in seen and "<returncode>137" in seen
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 1.0, "Submitted")


def test_cpu_time_ends_the_agent_without_a_failure(small_server, model):
    view = small_server.run(model, [FIX, CPU_BURNER])
    assert (view.status, view.exit_code, view.error) == ("completed", 0, None)
    assert (view.reward, view.agent_exit_status, view.submission, view.n_calls) == (
        0.0,
        "SandboxLimitExceeded: cpu",
        "",
        2,
    )
    assert view.grade["status"] == "no_submission"


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        ("a = [bytearray(5 << 20) for n in range(100)]; import time; time.sleep(10)", "memory"),
        ("any(0 for n in iter(int, 1))", "cpu"),
    ],
    ids=["memory", "cpu"],
)
def test_tests_that_exceed_a_limit_fail(small_server, model, program, limit):
    view = small_server.run(model, [f"{FIX}\nsed -i '1i {program}' {FILE}"])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, "Submitted")
    assert (view.grade["status"], view.grade["limit"]) == ("graded", limit)


def test_nothing_of_the_host_is_visible_inside(small_server, model):
    """No environment, argument, descriptor, mount or file contains the key or the host's variables and folders."""
    key = f"key-{uuid.uuid4().hex}"
    scan = (
        "(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo | tr '\\0' '\\n'; "
        "ls -l /proc/[0-9]*/fd /proc/[0-9]*/cwd; env; ls / /mnt /root /home; "
        "grep -rhI --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude=scan "
        "-e work -e key- -e mark- -e SERVER /) >/tmp/scan 2>/dev/null"
    )
    secrets = [key, "mark-of-the-host", str(small_server.work_dir), str(ROOT), "AGENT_SERVER"]
    known = ["APPTAINER_NAME", "overlay", "PAGER=cat", "/memfd:output"]  # found by the scan
    counts = "; ".join(f"grep -c -F -- {pattern} /tmp/scan" for pattern in secrets + known)
    small_server.run(model, [scan, counts], key=key)
    seen = model.requests[key][2]["messages"][-1]["content"]
    numbers = [int(line) for line in seen.splitlines() if line.isdigit()]
    assert numbers[: len(secrets)] == [0] * len(secrets), (secrets, numbers)
    assert len(numbers) == len(secrets + known) and all(numbers[len(secrets) :]), numbers
