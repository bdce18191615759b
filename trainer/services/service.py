"""Child servers of a run (engine, gateway, agent server): start, health check, stop.

Invariant: a service's whole process tree ends with `stop()`, and also when the trainer is killed. Between the trainer
and the server runs `trainer/services/supervisor.py`, which kills what is left. The supervisor ends when the *thread*
that called `start()` ends: call it from a thread that lives as long as the service (the main thread).
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from client.errors import ConfigError, ServerUnreachable, StackError

SUPERVISOR = Path(__file__).with_name("supervisor.py")
POLL_S = 0.1
LOG_LINES = 25
LOG_BYTES = 65536
_EXCEPTION = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception): .+")
# The servers of a run are on this machine or its network: no proxy from the environment.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Service:
    """One server process with its descendants.

    `env` is its whole environment. stdout and stderr are appended to `log`. The server is ready when the URL `health`
    answers 2xx, or the function `health` returns True. `stop_grace_s` is the time between SIGTERM and SIGKILL.
    `unreachable` is the error class for a server that does not become ready: it names the boundary at fault.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        env: Mapping[str, str],
        log: Path,
        health: str | Callable[[], bool],
        *,
        stop_grace_s: float = 10.0,
        unreachable: type[StackError] = ServerUnreachable,
    ):
        self.name, self.command, self.log = name, [str(part) for part in command], Path(log)
        self._env, self._health, self._grace_s, self._unreachable = dict(env), health, stop_grace_s, unreachable
        self._supervisor: subprocess.Popen | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the process and return at once. Raises ConfigError where the health URL's port is in use."""
        if self._supervisor is not None:
            raise RuntimeError(f"{self.name} is running already: call stop() first")
        if isinstance(self._health, str):
            url = urlsplit(self._health)
            if url.hostname is None or url.port is None:
                raise ValueError(f"the health URL of {self.name} must name host and port, not {self._health!r}")
            require_free_port(self.name, url.hostname, url.port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), str(self._grace_s), *self.command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the trainer, which stops the services
            )

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server is healthy. Raises `unreachable`, with the end of the log, if it ends or is late."""
        deadline = time.monotonic() + timeout_s
        while not self._healthy():
            if not self.alive():
                code = self._supervisor.returncode if self._supervisor else None
                raise self._unreachable(
                    f"{self.name} ended with exit code {code} before it was ready.{self._log_end()}"
                )
            if time.monotonic() >= deadline:
                raise self._unreachable(f"{self.name} was not ready within {timeout_s:g} s.{self._log_end()}")
            time.sleep(POLL_S)

    def alive(self) -> bool:
        """True from `start()` until the process ends."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def check(self) -> None:
        """Raise `unreachable`, with the end of the log, if the process has ended."""
        if not self.alive():
            raise self._unreachable(f"{self.name} is not running.{self._log_end()}")

    def stop(self) -> None:
        """End the whole process tree and wait for it. Repeatable, also before `start()`."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        if supervisor.poll() is None:
            supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()  # bounded: the supervisor kills after the grace time

    def _healthy(self) -> bool:
        if not self.alive():
            return False
        if not isinstance(self._health, str):
            return self._health()
        try:
            with _direct.open(self._health, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _log_end(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        text = "\n".join([f" The last lines of {self.log}:", *(f"    {line}" for line in lines[-LOG_LINES:])])
        # A server of many processes logs the cause first, then its consequences.
        causes = list(dict.fromkeys(match[0] for line in lines[:-LOG_LINES] if (match := _EXCEPTION.search(line))))
        return text + "".join(f"\n  earlier in it: {cause}" for cause in causes[:3])


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port without a listener."""
    with socket.create_server((host, 0)) as listener:
        return listener.getsockname()[1]


def require_free_port(name: str, host: str, port: int) -> None:
    """Raise ConfigError where `port` cannot be bound: another server would answer in place of this one."""
    try:
        # create_server sets SO_REUSEADDR, so a port in TIME_WAIT counts as free, as for the servers themselves.
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConfigError(
            f"{name} needs port {port} on {host}, which cannot be used ({error.strerror}); "
            "end the process that holds it or configure another port"
        ) from None
