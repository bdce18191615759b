"""Results and errors of `python -m setup.images`: missing and broken images, credentials, wrong input, progress bar."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from tests.setup.conftest import ROOT
from tests.setup.images.conftest import NAMES, Command, assert_nothing_half_built, top_bytes
from tests.setup.images.oci import PASSWORD, TOP_BYTES, USER, Registry, proxy_to


def test_a_missing_image_is_reported_and_the_others_are_fetched(command: Command):
    command.set_rows(NAMES[0], "swe/task:never", "nobody/knows", NAMES[1])
    ran = command.run()
    assert ran.returncode == 1
    assert command.states() == {
        NAMES[0]: "fetched",
        "swe/task:never": "missing",
        "nobody/knows": "missing",
        NAMES[1]: "fetched",
    }
    assert "the registry has no" in command.report()["swe/task:never"]["reason"]
    table = ran.stdout.splitlines()
    assert [line.split() for line in table[1:3]] == [["fetched", "2"], ["missing", "2"]]
    assert any(line.startswith("missing   swe/task:never: ") for line in table)


def test_broken_images_are_found_and_fetched_again(command: Command, tmp_path: Path):
    assert command.run().returncode == 0
    os.truncate(
        command.sif("one"), command.sif("one").stat().st_size // 2
    )  # its header is intact: only a start shows the fault
    command.sif("two").write_bytes(b"<html>not found</html>")
    assert command.run().returncode == 0
    assert command.states() == {NAMES[0]: "present", NAMES[1]: "fetched", NAMES[2]: "present"}
    ran = command.run("--verify")
    assert ran.returncode == 0, ran.stderr
    assert command.states() == {NAMES[0]: "fetched", NAMES[1]: "present", NAMES[2]: "present"}
    assert "was broken" in command.report()[NAMES[0]]["reason"]
    assert top_bytes(command.sif("one"), tmp_path) == TOP_BYTES


def test_a_broken_image_that_the_registry_lacks_is_reported(command: Command):
    command.images.mkdir()
    (command.images / "swe__task__never.sif").write_bytes(b"no image")
    command.set_rows("swe/task:never")
    assert command.run().returncode == 1
    result = command.report()["swe/task:never"]
    assert (
        result["state"] == "broken" and "not a SIF file" in result["reason"] and "manifest unknown" in result["reason"]
    )


@pytest.mark.parametrize("removed", ["bash", "env"])
def test_a_directory_that_runs_nothing_is_broken(command: Command, tmp_path: Path, removed: str):
    command.set_rows(NAMES[0])
    assert command.run("--form", "directory").returncode == 0
    path = apptainer.image_path(command.images, NAMES[0])
    (path / "bin" / removed).unlink()
    assert command.run("--form", "directory", "--verify").returncode == 0
    assert command.states() == {NAMES[0]: "fetched"} and top_bytes(path, tmp_path) == TOP_BYTES
    assert_nothing_half_built(command)


def test_refused_credentials_are_distinguished_from_a_missing_image(tmp_path: Path, layout: Path, process_tag: str):
    with Registry(tmp_path / "registry", password=True) as registry, proxy_to(registry) as proxy:
        registry.push(layout, "one", NAMES[0])
        command = Command(tmp_path, proxy.address, process_tag)
        command.set_rows(NAMES[0], "swe/task:never")
        assert command.run(APPTAINER_DOCKER_USERNAME=USER, APPTAINER_DOCKER_PASSWORD="wrong").returncode == 1
        assert command.states() == {NAMES[0]: "refused", "swe/task:never": "refused"}
        assert "APPTAINER_DOCKER_PASSWORD" in command.report()[NAMES[0]]["reason"]
        assert command.run().returncode == 1 and command.states()[NAMES[0]] == "refused"
        assert command.run(APPTAINER_DOCKER_USERNAME=USER, APPTAINER_DOCKER_PASSWORD=PASSWORD).returncode == 1
        assert command.states() == {NAMES[0]: "fetched", "swe/task:never": "missing"}
        for login in (".docker/config.json", ".apptainer/docker-config.json"):
            command.sif("one").unlink()
            subprocess.run(
                [
                    "skopeo",
                    "login",
                    "--tls-verify=false",
                    "--authfile",
                    str(tmp_path / "login.json"),
                    "-u",
                    USER,
                    "-p",
                    PASSWORD,
                    proxy.address,
                ],
                check=True,
                capture_output=True,
            )
            (login_file := command.folder / "home" / login).parent.mkdir(exist_ok=True)  # apptainer has made its own
            (tmp_path / "login.json").rename(login_file)
            command.set_rows(NAMES[0])
            assert command.run().returncode == 0, command.report()
            login_file.unlink()


def test_a_registry_without_tls_needs_the_flag(tmp_path: Path, registry: Registry, process_tag: str):
    command = Command(tmp_path, registry.address, process_tag)
    environment = os.environ | {"R2E_DATA_PATH": str(tmp_path / "rows.jsonl"), "R2E_SIF_DIR": str(command.images)}
    ran = subprocess.run(
        [sys.executable, "-m", "setup.images", "--mirror", registry.address],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and "use --no-https" in ran.stdout


def test_a_terminal_shows_one_bar(command: Command):
    terminal, other_end = pty.openpty()
    arguments = [
        sys.executable,
        "-m",
        "setup.images",
        "--mirror",
        command.address,
        "--no-https",
        "--keep-free-gb",
        "0.1",
    ]
    environment = os.environ | {
        "R2E_DATA_PATH": str(command.folder / "rows.jsonl"),
        "R2E_SIF_DIR": str(command.images),
        "TERM": "xterm",
        "COLUMNS": "120",
    }
    process = subprocess.Popen(
        arguments, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=other_end
    )
    os.close(other_end)
    shown = b""
    with suppress(OSError):  # raised when the other end of a terminal is closed
        while chunk := os.read(terminal, 65536):
            shown += chunk
    os.close(terminal)
    table, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"3/3" in shown and b"3 fetched" in shown and b"[images]" not in shown
    assert b"fetched         3" in table


@pytest.mark.parametrize(
    "rows, message",
    [
        ('{"instance_id": "a-1", "image_name": ""}\n', "row a-1 names no image"),
        ('{"image": "a/b:1"}\n{"image": "a__b:1"}\n', "would both be the file a__b__1.sif"),
        ("not JSON\n", "cannot be read as jsonl"),
    ],
)
def test_invalid_rows_are_an_error(command: Command, rows: str, message: str):
    (command.folder / "rows.jsonl").write_text(rows)
    ran = command.run()
    assert ran.returncode == 78 and message in ran.stderr, ran.stderr


def test_missing_settings_are_named(command: Command):
    for missing in ("R2E_DATA_PATH", "R2E_SIF_DIR"):
        ran = command.run(**{missing: ""})
        assert ran.returncode == 78 and f"{missing} must be set" in ran.stderr
    ran = command.run(APPTAINER_DOCKER_USERNAME="reader")
    assert ran.returncode == 78 and "must be set together" in ran.stderr
    ran = command.run("--json", str(command.folder / "nowhere/report.json"))
    assert ran.returncode == 78 and "make it first" in ran.stderr
