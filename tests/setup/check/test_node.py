"""setup/check.sh on the node itself: disks, limits, Apptainer, namespaces, packages, proxies."""

import shutil
import subprocess
from pathlib import Path

from tests.setup.check.conftest import BASH_LINES, IMAGE, PYTHON_LINES, Table, assert_only
from tests.setup.conftest import ROOT, FakeMachine


def test_too_few_open_files(check):
    assert_only(check(before="ulimit -Sn 256"), "files", "256 open files", "ulimit -n 65536")


def test_a_full_disk(check, tmp_path: Path):
    """A work directory that does not exist yet: the check uses the file system where it would be made."""
    small = tmp_path / "small"
    small.mkdir()
    script = tmp_path / "on_a_small_disk.sh"
    script.write_text(f'mount -t tmpfs -o size=8m none {small} && exec bash {ROOT}/setup/check.sh "$@"\n')
    table = check(
        before='exec unshare --mount bash "$0" "$@"', script=script, AGENT_SERVER_WORK_DIR=str(small / "a" / "work")
    )
    assert_only(table, "work_dir", "8 MiB free", "AGENT_SERVER_WORK_DIR")


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
        "squashfuse is missing, and the kernel's module is missing or needs root",
        "bash setup/tools.sh",
    )


def test_without_packages_the_remedy_names_the_set_up(check, tmp_path: Path):
    shutil.copytree(ROOT / "setup", tmp_path / "checkout" / "setup")
    script = tmp_path / "checkout" / "setup" / "check.sh"
    table = check(script=script)
    assert_only(table, "venv", ".venv does not exist", "bash setup/setup.sh agents")
    assert {table.status[name] for name in PYTHON_LINES} == {"warn"}
    assert check("--session", script=script).failed == ["venv", "session"]


def test_broken_packages_are_named(check, tmp_path: Path):
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
    assert table.code == 1 and {"apptainer", "venv"} <= set(table.failed), table.output
    assert table.names == [*BASH_LINES, *PYTHON_LINES]
    assert (table.status["system"], table.status["kernel"]) == ("ok", "ok")


def test_the_line_of_proxies_says_what_goes_through_them(check):
    table = check(HTTP_PROXY="http://proxy.invalid:3128", all_proxy="http://proxy.invalid:3128")
    assert (table.code, table.status["proxies"]) == (0, "ok")
    assert "HTTP_PROXY all_proxy, for downloads only: model calls are direct" in table.text["proxies"]
    table = check(HTTP_PROXY="http://proxy.invalid:3128", AGENT_SERVER_PROXIES="environment")
    assert (table.code, table.status["proxies"]) == (0, "ok") and "for model calls too" in table.text["proxies"]


def test_a_proxy_that_calls_cannot_use_is_a_wrong_setting(check):
    table = check(ALL_PROXY="socks5://user:secret@proxy.invalid:1080", AGENT_SERVER_PROXIES="environment")
    assert_only(table, "settings", "ALL_PROXY=proxy.invalid:1080 must be http://HOST:PORT", "correct the variable")
    assert "secret" not in table.output


def test_wrong_arguments_are_refused():
    ran = subprocess.run(["bash", str(ROOT / "setup/check.sh"), "--sesion"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "--session" in ran.stderr and ran.stdout == ""


def test_too_little_memory_for_one_sandbox(check):
    table = check(AGENT_SERVER_SANDBOX_MEMORY_MIB=str(10**9), AGENT_SERVER_WORKER_MEMORY_MIB="100")
    too_little = "too little for the server and one session at its limits (1000000100 MiB)"
    assert_only(table, "memory", too_little, "add memory")


def test_many_sandboxes_at_their_limit_are_a_warning(check):
    table = check(AGENT_SERVER_TRAIN_CONCURRENCY="1000", AGENT_SERVER_EVAL_CONCURRENCY="24")
    assert (
        table.status["memory"] == "warn"
        and "1024 sessions at their limits of 5120 MiB (sandbox and worker) use 5242880" in table.text["memory"]
    )


def test_too_few_processes(check):
    assert_only(
        check(before="ulimit -u 1300"), "processes", "1300 processes and threads; the server's 1200", "ulimit -u"
    )
