"""Apptainer sandboxes: isolation, and images that cannot be started."""

import os

import pytest

from agent_server.sandboxes import apptainer
from agent_server.sandboxes.processes import descendants
from client.errors import ImageCorrupt, ImageMissing


def test_no_signal_from_inside_kills_the_shell(tmp_path, demo_image):
    sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30)
    try:
        for command in (
            "kill -9 -1",
            "kill -1 -1",
            "kill -STOP 1; kill -9 1; kill -TERM $PPID",
            "for pid in $(seq 2 300); do kill -9 $pid; done",
        ):
            sandbox.run(command, cwd="/tmp", timeout_s=10.0)
            assert sandbox.run("echo alive", cwd="/tmp", timeout_s=10.0).output == "alive\n", command
    finally:
        sandbox.close()


def test_host_and_network_are_not_visible_inside(tmp_path, demo_image):
    sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30)
    try:
        found = sandbox.run(
            f"ls {tmp_path} {os.path.expanduser('~')}/.bashrc; cat /proc/net/route | wc -l; ls /sys/class/net; "
            "grep CapEff /proc/self/status",
            cwd="/tmp",
            timeout_s=10.0,
        )
    finally:
        sandbox.close()
    assert "No such file" in found.output and "\n1\nlo\n" in found.output
    assert "CapEff:\t0000000000000000" in found.output


def test_an_unusable_image_leaves_no_process(tmp_path):
    children = len(descendants(os.getpid()))
    with pytest.raises(ImageMissing):
        apptainer.start(tmp_path / "none.sif", scratch=tmp_path, env={}, start_timeout_s=10)
    (tmp_path / "text.sif").write_text("text")
    with pytest.raises(ImageCorrupt):
        apptainer.start(tmp_path / "text.sif", scratch=tmp_path, env={}, start_timeout_s=10)
    assert len(descendants(os.getpid())) == children
