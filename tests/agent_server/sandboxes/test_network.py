"""A sandbox with a network: it reaches public addresses, and neither this machine nor what is private.

The machine is a network namespace of the test's own (outside.py).
"""

import json
import os
import signal
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
import requests

from agent_server.sandboxes import apptainer, network
from agent_server.sandboxes.network_rules import ruleset
from agent_server.sandboxes.processes import read_process
from client.errors import SandboxStartFailed, SetupError
from tests.agent_server.conftest import ROOT, eventually

NOT_REACHED = {
    "loopback": "ConnectionRefusedError",  # the sandbox's own, where nothing listens
    "machine": "OSError",  # No route to host
    "machine_by_device": "OSError",
    "machine_private": "OSError",
    "gateway": "OSError",
    "resolver": "OSError",
    "mapped": "OSError",
    "ipv6": "OSError",
    "multicast": "PermissionError",
    "abstract": "ConnectionRefusedError",
    "metadata": "OSError",
    "name_server": "OSError",
}
CHANGE_INTERFACE = """python3 - <<'END'
import fcntl, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"tap0", 0))  # SIOCSIFFLAGS: down
END"""

# An agent that runs what the model answers, and submits if that succeeds.
AGENT = """python3 - <<'END'
import json, os, subprocess, sys, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"messages": []}')
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
sys.exit(subprocess.run(["bash", "-c", answer.partition("```bash\\n")[2].rpartition("\\n```")[0]]).returncode)
END"""
GOVERN = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        urllib.request.urlopen(urllib.request.Request(f"{url}/limits", b'{"train": 1}', method="PATCH"), timeout=5)
    except OSError as error:
        assert "refused" in str(error), error
    else:
        sys.exit(1)"""


@pytest.fixture(scope="module")
def reached(demo_image, tmp_path_factory) -> dict:
    scratch = tmp_path_factory.mktemp("outside")
    command = ["unshare", "--net", "--mount", "--kill-child", sys.executable, "-m", f"{__package__}.outside"]
    ran = subprocess.run(
        [*command, str(scratch), str(demo_image)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_public_addresses_and_names_are_reached(reached):
    for settings in ("default", "allowed"):
        assert (reached[settings]["public"], reached[settings]["name"]) == ("outside", "outside")


@pytest.mark.parametrize("settings", ["default", "allowed"])
@pytest.mark.parametrize("name", NOT_REACHED)
def test_neither_the_machine_nor_private_addresses_are_reached(reached, settings, name):
    assert reached[settings][name] == NOT_REACHED[name]


def test_a_private_network_is_reached_where_it_is_allowed(reached):
    assert reached["default"]["private"] == "OSError"
    assert reached["allowed"]["private"] == "outside"
    assert reached["allowed"]["machine_private"] == "OSError", "of the same network, but this machine's"


def test_no_multicast_reaches_the_machine(reached):
    assert reached["received"] == ["own"]


@pytest.fixture
def connected(tmp_path, demo_image):
    sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, network=True)
    yield sandbox
    sandbox.close()


def test_the_sandbox_cannot_change_its_network(connected):
    for prefix in ("", "unshare --user --map-root-user "):
        changed = connected.run(f"{prefix}{CHANGE_INTERFACE}", cwd="/tmp", timeout_s=20)
        assert changed.returncode != 0 and "not permitted" in changed.output, changed.output
    interfaces = connected.run("ls /sys/class/net; cat /sys/class/net/tap0/flags", cwd="/tmp", timeout_s=20)
    assert interfaces.output == "lo\ntap0\n0x3\n", "up, broadcast"


def test_the_connection_ends_with_its_sandbox(connected):
    (process,) = slirp_processes(os.getpid())
    connected.close()
    assert read_process(process) is None


def test_the_connection_ends_with_a_worker_that_is_killed(tmp_path, demo_image):
    program = (
        "import time; from pathlib import Path; from agent_server.sandboxes import apptainer\n"
        f"s = apptainer.start(Path({str(demo_image)!r}), scratch=Path({str(tmp_path)!r}), env={{}},"
        " start_timeout_s=30, network=True)\nprint(flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        worker.stdout.readline()
        (process,) = slirp_processes(worker.pid)
        worker.send_signal(signal.SIGKILL)
    eventually(lambda: not is_running(process), what="slirp4netns ended")


def test_a_sandbox_that_cannot_be_connected_is_closed(tmp_path, demo_image, monkeypatch):
    monkeypatch.setattr(network, "MTU", 100_000)  # more than a packet can have
    before = children(os.getpid())
    with pytest.raises(SandboxStartFailed, match="slirp4netns did not connect the sandbox: .*MTU"):
        apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, network=True)
    assert children(os.getpid()) == before


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="needs slirp4netns, nsenter; install them with `bash setup/tools.sh`"):
        network.find_programs()


def test_a_missing_device_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "TUN_DEVICE", tmp_path / "tun")
    with pytest.raises(SetupError, match="needs .*tun, readable and writable; run `modprobe tun`"):
        network.find_programs()


def test_overlapping_networks_are_one_interval():
    allowed = [IPv4Network("10.0.0.0/8"), IPv4Network("10.1.0.0/16")]
    rules = ruleset([IPv4Address("127.0.0.1"), IPv4Address("10.1.2.3")], allowed)
    assert "ip daddr { 10.0.0.0/8 } accept" in rules
    assert "ip daddr { 0.0.0.0/8, 10.1.2.3/32, 127.0.0.0/8, 192.0.0.0/24, 224.0.0.0/3 } reject" in rules


def test_the_machines_addresses_are_those_of_every_interface():
    assert IPv4Address("127.0.0.1") in network.local_addresses()


def test_an_agent_calls_its_model_and_cannot_govern_its_server(own_server, model):
    """The relay listens in the sandbox itself; the server and the model do not answer, not even with a refusal."""
    server = own_server(AGENT_SERVER_AGENT=f"sandbox: {AGENT}", AGENT_SERVER_SANDBOX_NETWORK="1")
    before = requests.get(f"{server.url}/limits", timeout=5).json()
    govern = f"python3 - {server.url} {model.url} <<'END'\n{GOVERN}\nEND"
    view = server.run(model, [f"test -e /sys/class/net/tap0 && {govern}"])
    assert (view.status, view.agent_exit_status, view.n_calls) == ("completed", "Submitted", 1)
    assert requests.get(f"{server.url}/limits", timeout=5).json() == before


def slirp_processes(parent: int) -> list[int]:
    return [pid for pid in children(parent) if Path(f"/proc/{pid}/comm").read_text() == "slirp4netns\n"]


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def is_running(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive
