"""The persistent shell, in an Apptainer sandbox and on a plain bash: the same behaviour, whatever the command does."""

import os
import signal
import time

import pytest

from agent_server.sandboxes import apptainer, shell_output
from agent_server.sandboxes.processes import descendants, read_process
from agent_server.sandboxes.shell import PersistentShell
from client.errors import InvalidRequest, SandboxDied, SandboxLimitExceeded, SandboxStartFailed
from tests.agent_server.conftest import eventually


@pytest.fixture(params=["apptainer", "plain bash"])
def sandbox(request, tmp_path, demo_image):
    if request.param == "apptainer":
        started = apptainer.start(demo_image, scratch=tmp_path, env={"GREETING": "hello there"}, start_timeout_s=30)
    else:
        argv = ["bash", "--noprofile", "--norc", "-s"]
        started = PersistentShell(argv, start_timeout_s=10, env={"GREETING": "hello there", "PATH": os.environ["PATH"]})
    yield started
    started.close()
    assert read_process(started.pid) is None


def run(sandbox, command, timeout_s=10.0, cwd="/tmp"):
    return sandbox.run(command, cwd=cwd, timeout_s=timeout_s)


def test_output_status_and_directory(sandbox):
    result = run(sandbox, "echo out; echo err >&2; echo $GREETING; pwd; exit 7")
    assert (result.output, result.returncode, result.limit) == ("out\nerr\nhello there\n/tmp\n", 7, "")


def test_only_files_and_processes_of_a_command_remain(sandbox):
    run(sandbox, "cd /; export X=1; exec 2>/dev/null; set -e; shopt -s extglob; echo kept > /tmp/swe_kept; exec 1>&-")
    result = run(sandbox, "echo ${X:-unset}; pwd; cat /tmp/swe_kept; rm /tmp/swe_kept; false; echo on")
    assert result.output == "unset\n/tmp\nkept\non\n"


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$", "if", "echo '", "cat", "read x", ")", "}", "\\", ""])
def test_no_command_breaks_the_shell(sandbox, command):
    run(sandbox, command, timeout_s=5.0)
    assert run(sandbox, "echo alive").output == "alive\n"


@pytest.mark.parametrize("command", ["kill -9 0", "kill 0", "kill -9 -- -$$"])
def test_a_signal_to_the_commands_group_ends_only_the_command(sandbox, command):
    assert run(sandbox, f"{command}; echo not reached; sleep 1").output == ""
    assert run(sandbox, "echo alive").output == "alive\n"


def test_a_missing_directory_is_a_result(sandbox):
    result = run(sandbox, "echo not reached", cwd="/nowhere")
    assert result.returncode == 1 and "not reached" not in result.output


def test_a_grandchild_with_the_output_open_does_not_delay_the_result(sandbox):
    started = time.monotonic()
    result = run(sandbox, "sleep 30 & echo $! >/tmp/swe_pid; echo done")
    assert result.output == "done\n" and time.monotonic() - started < 5
    run(sandbox, "kill $(cat /tmp/swe_pid); rm /tmp/swe_pid", timeout_s=5)


def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(sandbox):
    before = len(descendants(sandbox.pid))
    result = run(
        sandbox,
        "echo begun; trap '' TERM INT HUP; (trap '' TERM; setsid sleep 1001) & (sleep 1002 | cat) & sleep 1003",
        timeout_s=0.5,
    )
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "time")
    eventually(lambda: len(descendants(sandbox.pid)) <= before, what="children of the command gone")
    assert run(sandbox, "echo alive").output == "alive\n"


def test_a_timeout_does_not_kill_processes_of_earlier_commands(sandbox):
    run(sandbox, "sleep 1004 >/dev/null 2>&1 & echo $! > /tmp/swe_pid")
    time.sleep(0.05)
    run(sandbox, "sleep 1005", timeout_s=0.3)
    result = run(sandbox, "kill -0 $(cat /tmp/swe_pid) && echo lives; kill $(cat /tmp/swe_pid); rm /tmp/swe_pid")
    assert result.output == "lives\n"


def test_too_much_output_ends_the_command(sandbox, monkeypatch):
    monkeypatch.setattr(shell_output, "OUTPUT_LIMIT_BYTES", 100_000)
    result = run(sandbox, "echo first; yes")
    assert result.limit == "output" and result.output.startswith("first\n") and "bytes left out" in result.output
    assert len(result.output) < 101_000


def test_undecodable_output_and_long_commands(sandbox):
    assert run(sandbox, "printf '\\xff\\xfe ok'").output == "\ufffd\ufffd ok"
    assert run(sandbox, "echo " + "x" * 300_000 + " | wc -c").output == "300001\n"
    with pytest.raises(InvalidRequest, match="NUL"):
        run(sandbox, "echo \0")


def test_a_written_file_has_exactly_the_given_content(sandbox):
    content = "no newline at the end, 'quotes', $dollars, `ticks`, END\nEND\n\u00e9" + "z" * 500_000
    sandbox.write_file("/tmp/swe file", content)
    assert run(sandbox, "cat '/tmp/swe file'; rm '/tmp/swe file'").output == content


def test_a_dead_shell_raises(sandbox):
    os.kill(sandbox.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied):
        run(sandbox, "sleep 1")
        run(sandbox, "sleep 1")


def test_close_kills_background_processes(sandbox):
    run(sandbox, "sleep 1006 & setsid sleep 1007 &")
    inside = [process.pid for process in descendants(sandbox.pid)]
    sandbox.close()
    eventually(
        lambda: not [pid for pid in inside if (p := read_process(pid)) and p.state != "Z"],
        what="everything inside gone",
    )


def test_a_failed_start_leaves_no_process():
    children = len(descendants(os.getpid()))
    with pytest.raises(SandboxStartFailed, match="did not answer within"):
        PersistentShell(["sleep", "60"], start_timeout_s=0.2)
    with pytest.raises(SandboxStartFailed, match="is it installed"):
        PersistentShell(["/no/such/program"], start_timeout_s=1)
    with pytest.raises(SandboxStartFailed, match="some reason"):
        PersistentShell(["bash", "-c", "echo some reason >&2; exit 1"], start_timeout_s=5)
    assert len(descendants(os.getpid())) == children


def test_a_cpu_limit_at_the_end_of_a_command_is_an_error_of_the_sandbox():
    """The watchdog may check the CPU time after the command ended and before the worker asks."""

    class OverCpu:
        start_command = close = lambda self: None
        finish_command = lambda self: "cpu"  # noqa: E731

    shell = PersistentShell(["bash", "--noprofile", "--norc", "-s"], start_timeout_s=10)
    shell._watchdog = OverCpu()
    with pytest.raises(SandboxLimitExceeded) as raised:
        run(shell, "true")
    assert raised.value.limit == "cpu"
    shell.close()
