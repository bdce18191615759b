"""A sandbox's network: a process of slirp4netns connects the sandbox's network namespace to the outside.

Its connections are made by that process, on this machine, so that no route or address of the machine is shared. What
the sandbox may send to is decided inside, by rules that its processes, which have no capabilities, cannot change.
Invariant: the rules are in force before the connection is there. It ends with `close`, and with the worker.
"""

import os
import resource
import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from agent_server.sandboxes.namespaces import shares_user_namespace
from agent_server.sandboxes.network_rules import SANDBOX_NETWORK, ruleset
from client.errors import SandboxStartFailed, SetupError

PROGRAMS = ("slirp4netns", "nft", "nsenter")
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
TUN_DEVICE = Path("/dev/net/tun")
ROUTING_TABLE = Path("/proc/self/net/fib_trie")
INTERFACE, MTU = "tap0", 65520
MAX_DESCRIPTORS = (
    256  # of slirp4netns: one for each connection, which takes up to 256 KiB of memory outside the sandbox
)
MESSAGE_BYTES = 4096


def find_programs() -> dict[str, str]:
    """Path of each program. Raises SetupError where this machine lacks what a sandbox's network needs."""
    # nft is in a folder that another user's PATH may lack.
    found = {name: shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") for name in PROGRAMS}
    if missing := [name for name, path in found.items() if path is None]:
        raise SetupError(
            f"AGENT_SERVER_SANDBOX_NETWORK=1 needs {', '.join(missing)}; install them with `bash setup/tools.sh`"
            " (Debian's packages slirp4netns, nftables and util-linux), or set it to 0"
        )
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        raise SetupError(
            f"AGENT_SERVER_SANDBOX_NETWORK=1 needs {TUN_DEVICE}, readable and writable; run `modprobe tun` as root"
            " (a container: --device /dev/net/tun), or set it to 0"
        )
    return {name: path for name, path in found.items() if path}


class SandboxNetwork:
    """The process that connects one sandbox."""

    def __init__(self, pid: int, allowed: Sequence[IPv4Network], timeout_s: float):
        """Connect the network namespace of process `pid`, which has the interface lo alone.

        `allowed`: private networks that the sandbox may reach. Raises SetupError, SandboxStartFailed.
        """
        programs = find_programs()
        _apply_rules(programs, pid, ruleset(local_addresses(), allowed), timeout_s)
        command = [programs["slirp4netns"], "--configure", f"--mtu={MTU}", f"--cidr={SANDBOX_NETWORK}"]
        command += ["--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"]
        command += [] if shares_user_namespace(pid) else [f"--userns-path=/proc/{pid}/ns/user"]
        # The process ends when the other end of `exit_end` closes, so also when this process is killed.
        exit_end, self._open_while_used = os.pipe()
        ready, ready_end = os.pipe()
        # What a sandbox sends can make the process print. It must not wait for a reader then, nor fill a disk.
        self._messages, messages_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            try:
                self._process = subprocess.Popen(
                    [*command, f"--ready-fd={ready_end}", f"--exit-fd={exit_end}", str(pid), INTERFACE],
                    stdin=subprocess.DEVNULL,
                    stdout=messages_end,
                    stderr=messages_end,
                    pass_fds=[ready_end, exit_end],
                    cwd="/",
                )
            finally:
                for descriptor in (exit_end, ready_end, messages_end):
                    os.close(descriptor)
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
            self._wait_ready(ready, timeout_s)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(ready)

    def close(self) -> None:
        """End the process. Not repeatable."""
        if self._process:
            self._process.kill()
            self._process.wait()
        os.close(self._open_while_used)
        os.close(self._messages)

    def _wait_ready(self, ready: int, timeout_s: float) -> None:
        readable, _, _ = select.select([ready], [], [], timeout_s)
        if not readable or not os.read(ready, 1):
            raise SandboxStartFailed(f"slirp4netns did not connect the sandbox: {self._message()}")

    def _message(self) -> str:
        try:
            return os.read(self._messages, MESSAGE_BYTES).decode(errors="replace").strip()
        except BlockingIOError:
            return "it printed nothing"


def local_addresses() -> set[IPv4Address]:
    """This machine's IPv4 addresses, those of every interface, as its routing table has them."""
    addresses, address = set(), ""
    for line in ROUTING_TABLE.read_text().splitlines():
        if "|-- " in line:
            address = line.split()[-1]
        elif line.split()[:3] == ["/32", "host", "LOCAL"]:
            addresses.add(IPv4Address(address))
    return addresses


def _apply_rules(programs: Mapping[str, str], pid: int, rules: str, timeout_s: float) -> None:
    enter = [programs["nsenter"], f"--target={pid}", "--net"]
    enter += [] if shares_user_namespace(pid) else ["--user", "--preserve-credentials"]
    try:
        subprocess.run(
            [*enter, programs["nft"], "--file", "-"],
            input=rules,
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.SubprocessError) as error:
        printed = getattr(error, "stderr", None) or error
        raise SandboxStartFailed(
            f"the rules of the sandbox's network were refused: {printed}; nft needs a kernel with nf_tables, and"
            " entering the sandbox needs root or a sandbox in a user namespace"
        ) from error
