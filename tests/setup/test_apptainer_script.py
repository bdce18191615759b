"""setup/apptainer.sh and setup/tools.sh: a working installation is kept, and every failure names its remedy."""

import subprocess
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, FakeMachine

MUST_NOT_RUN = "echo this must not run >&2; exit 99"


def assert_stops_with(ran: subprocess.CompletedProcess[str], reason: str, remedy: str) -> None:
    assert ran.returncode == 78, ran.stderr
    assert reason in ran.stderr
    assert remedy in ran.stderr.split("remedy:")[1]


def test_a_working_apptainer_is_used_and_nothing_is_installed():
    before = (
        Path("/etc/apptainer/apptainer.conf").stat().st_mtime_ns
        if Path("/etc/apptainer/apptainer.conf").exists()
        else None
    )
    for _ in range(2):
        ran = subprocess.run(
            ["bash", str(ROOT / "setup/apptainer.sh")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    after = (
        Path("/etc/apptainer/apptainer.conf").stat().st_mtime_ns
        if Path("/etc/apptainer/apptainer.conf").exists()
        else None
    )
    assert before == after


def test_no_apt_source_is_added():
    sources = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME)"], capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "sid" not in sources


def test_without_root_the_remedy_names_the_command(fake_machine: FakeMachine):
    fake_machine.stub("id", "echo 1000")
    fake_machine.stub("apt-get", MUST_NOT_RUN)
    assert_stops_with(
        fake_machine.run("setup/apptainer.sh"), "only root can install it", "run `bash setup/apptainer.sh` as root"
    )
    assert not any(call.startswith("apt-get") for call in fake_machine.calls)


def test_without_apt_the_remedy_names_the_installation_guide(fake_machine: FakeMachine):
    assert_stops_with(
        fake_machine.run("setup/apptainer.sh"),
        "no Debian system",
        "https://apptainer.org/docs/admin/main/installation.html",
    )


def test_an_apptainer_that_runs_no_sandbox_is_refused(fake_machine: FakeMachine):
    fake_machine.stub(
        "apptainer",
        'test "$1" = --version && echo apptainer version 9 || { echo FATAL: no namespaces here >&2; exit 255; }',
    )
    ran = fake_machine.run("setup/apptainer.sh")
    assert_stops_with(ran, "missing or does not work", "so that `apptainer exec DIRECTORY /bin/sh` works")
    assert "cannot run a sandbox: FATAL: no namespaces here" in ran.stderr


@pytest.mark.parametrize("failing", ["update", "download"])
def test_an_unreachable_mirror_stops_with_the_log(fake_machine: FakeMachine, failing: str):
    fake_machine.stub(
        "apt-get",
        f"""case "$*" in
            *indextargets*) echo file:///nowhere/debian ;;
            *{failing}*) echo "E: {failing} failed: no route to the mirror" >&2; exit 100 ;;
        esac""",
    )
    ran = fake_machine.run("setup/apptainer.sh")
    assert_stops_with(ran, "error: ", "with the Debian package mirror reachable")
    assert f"E: {failing} failed: no route to the mirror" in ran.stderr
    assert not list(fake_machine.folder.glob("swe-rl-apptainer.*/")), "the private apt state is removed"


def test_an_unknown_system_is_named(fake_machine: FakeMachine, tmp_path: Path):
    release = tmp_path / "os-release"
    release.write_text('ID=plan9\nVERSION_ID="4"\nPRETTY_NAME="Plan 9, fourth edition"\n')
    fake_machine.stub("apt-get", MUST_NOT_RUN)
    fake_machine.add("mount", "unshare")
    script = f"mount --bind {release} /etc/os-release && exec bash {ROOT}/setup/apptainer.sh"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=fake_machine.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert_stops_with(ran, "cannot install it on Plan 9, fourth edition", "install apptainer 1.2 or later")


def test_missing_tools_are_named_with_the_command(fake_machine: FakeMachine):
    fake_machine.stub("id", "echo 1000")
    fake_machine.stub("apt-get", MUST_NOT_RUN)
    fake_machine.add("ps")
    ran = fake_machine.run("setup/tools.sh")
    assert_stops_with(ran, "mount", "as root: apt-get update && apt-get install -y mount squashfs-tools mmdebstrap")
    assert "procps" not in ran.stderr


@pytest.mark.parametrize("purpose, needed", [("train", True), ("test", True), ("agents", False)])
def test_only_the_engine_needs_libnuma(fake_machine: FakeMachine, purpose: str, needed: bool):
    fake_machine.stub("id", "echo 1000")
    fake_machine.stub("ldconfig", "echo '\tlibnumerous.so.1 (libc6,x86-64) => /lib/libnumerous.so.1'")
    assert ("libnuma1" in fake_machine.run("setup/tools.sh", purpose).stderr) == needed


def test_installed_tools_are_kept():
    ran = subprocess.run(
        ["bash", str(ROOT / "setup/tools.sh")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
