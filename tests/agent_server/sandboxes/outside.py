"""A machine of a test's own with a network: run by `unshare --net --mount`, it is this process's network namespace.

Behind a pair of interfaces lies another namespace, the outside. It has a public address, private ones, and a name
server. Machine and outside respond with their names at PORT of every address.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

from agent_server.sandboxes import apptainer
from agent_server.sandboxes.limits import Limits

PORT = 8000
LIMITS = Limits(memory_bytes=1 << 30, processes=200, disk_bytes=1 << 29, cpu_s=100.0)
MACHINE = ("11.0.0.1/24", "10.9.0.1/24", "fd11::1/64")
OUTSIDE = ("11.0.0.2/24", "10.9.0.2/24", "169.254.169.254/32", "10.53.0.1/32", "fd11::2/64")
NAME_SERVER = "10.53.0.1"
ABSTRACT_SOCKET = "\0machine"
MULTICAST = ("224.0.0.251", PORT)

# Run inside a sandbox: for each name the reply at PORT of an address, or the error.
PROBE = f"""
import json, socket, sys

def ask(address, device=b"", port={PORT}):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(5)
        if device:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        s.connect((address, port))
        return s.recv(20).decode()

def multicast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("192.0.0.100"))
        s.sendto(b"from inside", {MULTICAST!r})

def abstract():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect({ABSTRACT_SOCKET!r})

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return type(error).__name__

print(json.dumps(dict(
    public=attempt(ask, "11.0.0.2"),
    name=attempt(ask, "some.name.example"),
    private=attempt(ask, "10.9.0.2"),
    metadata=attempt(ask, "169.254.169.254"),
    name_server=attempt(ask, "{NAME_SERVER}"),
    loopback=attempt(ask, "127.0.0.1"),
    machine=attempt(ask, "11.0.0.1"),
    machine_by_device=attempt(ask, "11.0.0.1", b"tap0"),
    machine_private=attempt(ask, "10.9.0.1"),
    gateway=attempt(ask, "192.0.0.2"),
    resolver=attempt(ask, "192.0.0.3"),
    mapped=attempt(ask, "::ffff:11.0.0.1"),
    ipv6=attempt(ask, "fd11::1"),
    multicast=attempt(multicast),
    abstract=attempt(abstract),
)))
"""


def main(scratch: Path, image: Path) -> None:
    """Print what sandboxes reach, without and with a private network that is allowed, and what the machine received."""
    resolv_conf = scratch / "resolv.conf"
    resolv_conf.write_text(f"nameserver {NAME_SERVER}\n")
    _call("mount", "--bind", resolv_conf, "/etc/resolv.conf")
    _call("ip", "link", "set", "lo", "up")
    with subprocess.Popen(
        ["unshare", "--net", sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as outside:
        assert outside.stdin and outside.stdout
        outside.stdout.readline()
        _call("ip", "link", "add", "machine0", "type", "veth", "peer", "name", "outside0", "netns", outside.pid)
        _configure("machine0", MACHINE)
        for address in ("169.254.169.254", NAME_SERVER):
            _call("ip", "route", "add", address, "dev", "machine0")
        outside.stdin.write(b"\n")
        outside.stdin.flush()
        outside.stdout.readline()
        _serve("machine")
        received = _listen()
        reached = [_probe(scratch, image, allowed) for allowed in ((), (IPv4Network("10.9.0.0/24"),))]
        outside.kill()
    print(json.dumps({"default": reached[0], "allowed": reached[1], "received": received}))


def be_outside() -> None:
    """The process of the other namespace. Never returns."""
    print(flush=True)
    sys.stdin.readline()
    _configure("outside0", OUTSIDE)
    _serve("outside")
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((NAME_SERVER, 53))
    print(flush=True)
    while True:
        query, caller = names.recvfrom(512)
        names.sendto(_answer(query), caller)


def _answer(query: bytes) -> bytes:
    """The response of a name server for which every name has the public address, and no other record."""
    question = query[12 : query.index(b"\0", 12) + 5]
    is_a = question[-4:-2] == b"\0\1"
    head = query[:2] + b"\x81\x80" + b"\0\1" + (b"\0\1" if is_a else b"\0\0") + b"\0\0\0\0"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("11.0.0.2")
    return head + question + (record if is_a else b"")


def _probe(scratch: Path, image: Path, allowed: Sequence[IPv4Network]) -> dict[str, str]:
    sandbox = apptainer.start(
        image,
        scratch=scratch,
        env={},
        start_timeout_s=30,
        limits=LIMITS,
        network=True,
        allowed_networks=tuple(allowed),
    )
    try:
        sandbox.write_file("/tmp/probe.py", PROBE)
        result = sandbox.run_clean("python3 /tmp/probe.py", cwd="/tmp", timeout_s=60)
        assert result.returncode == 0, result.message
        return json.loads(result.output)
    finally:
        sandbox.close()


def _serve(name: str) -> None:
    """Respond with `name` at PORT of every address, in a thread."""
    listener = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)

    def respond() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(name.encode())

    threading.Thread(target=respond, daemon=True).start()


def _listen() -> list[str]:
    """The list of what arrives for the multicast group, and the abstract Unix socket of a program on the machine."""
    received: list[str] = []
    group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    group.bind(MULTICAST)
    for address in ("127.0.0.1", "11.0.0.1"):
        membership = socket.inet_aton(MULTICAST[0]) + socket.inet_aton(address)
        group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    program = socket.socket(socket.AF_UNIX)
    program.bind(ABSTRACT_SOCKET)
    program.listen()

    def receive() -> None:
        while True:
            received.append(group.recv(100).decode())
            program.fileno()  # the socket lives as long as this thread

    threading.Thread(target=receive, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("11.0.0.1"))
        own.sendto(b"own", MULTICAST)
    while not received:
        time.sleep(0.01)
    return received


def _configure(interface: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        _call("ip", "address", "add", address, "dev", interface, *(["nodad"] if ":" in address else []))
    _call("ip", "link", "set", interface, "up")


def _call(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        be_outside()
