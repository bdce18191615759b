"""The checks of setup/check.sh that need the server's own code: its settings, agent, rows, images, a sandbox, loop devices, port, clock.

    python -m setup.check [--failed N] [--session] [--gateway URL]     started by check.sh, which gives the defaults

Invariant: what a line says is what the server's own check says. Nothing is changed: what is started is ended, what is written lies in a
temporary folder. A check that cannot be tried is a warning; the fault that keeps it from being tried FAILs on its own line.
"""

import argparse
import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import requests

from agent_server.__main__ import check_images, check_port
from agent_server.agents.registry import load_agent
from agent_server.config import Settings, variable
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.loop_devices import BLOCK_DEVICES, find_unconfigured
from agent_server.sandboxes.processes import become_subreaper
from agent_server.tasks.catalog import MODES, open_catalog
from client.errors import ConfigError, StackError
from setup.check.session import GONE_S, SessionFault, living_after, run_session

ROOT = Path(__file__).resolve().parents[2]
OK, WARN, FAIL = "ok", "warn", "FAIL"
PATHS = ("data_path", "sif_dir")
APPTAINER_CONF = Path("/etc/apptainer/apptainer.conf")
LOOK_AGAIN_S = 0.5  # a start that is under way leaves a device unconfigured for a millisecond
SKEW_S = 5.0  # beyond it, logs of two machines no longer tell what came first
TIME_ERROR, TIMEX_BYTES, MICROSECONDS_OFFSET = (
    5,
    256,
    24,
)  # adjtimex(2): "not synchronised"; struct timex, and its maxerror


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    status: str
    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:5} {self.name:11} {' '.join(self.found.split())}" + (
            f"   remedy: {self.remedy}" if self.remedy else ""
        )


class Node:
    """What the settings say of this node: they themselves, its rows, its images. What is wrong with a part is in `faults`, by its line's name."""

    def __init__(self, environment: dict[str, str], demo: Path):
        self.demo = demo
        self.faults: dict[str, StackError] = {}
        self.settings = self._read(environment)
        self.catalog = self._try("rows", lambda: open_catalog(self.settings)) if self.settings else None
        self.images = (
            self._try("images", lambda: check_images(self.settings.sif_dir, self.catalog.image_names()))
            if self.catalog
            else None
        )
        is_demo = (environment.get("R2E_DATA_PATH"), environment.get("R2E_SIF_DIR")) == (
            str(demo / "tasks"),
            str(demo / "images"),
        )
        self.is_unbuilt_demo = is_demo and bool(self.faults) and "settings" not in self.faults

    def _read(self, environment: dict[str, str]) -> Settings | None:
        """The settings; a path that does not exist is the fault of its own line, and the others are read all the same."""
        for _ in range(1 + len(PATHS)):
            try:
                return Settings.from_environment(environment)
            except ConfigError as wrong:
                if wrong.field not in PATHS:
                    self.faults["settings"] = wrong
                    return None
                self.faults["rows" if wrong.field == "data_path" else "images"] = wrong
                environment = environment | {variable(wrong.field): "/"}
        return None

    def _try(self, name: str, look):
        if name in self.faults:
            return None
        try:
            return look()
        except StackError as wrong:
            self.faults[name] = wrong
        return None

    def an_image(self) -> Path | None:
        """One to try: an image of the rows, else any in R2E_SIF_DIR, else the demo's."""
        named = (
            [apptainer.image_path(self.settings.sif_dir, name) for name in sorted(self.catalog.image_names())]
            if self.catalog
            else []
        )
        for path in [
            *named,
            *sorted(self.settings.sif_dir.glob("*.sif")),
            *sorted((self.demo / "images").glob("*.sif")),
        ]:
            try:
                apptainer.check_image(path)
                return path
            except (StackError, OSError):
                continue
        return None


def lines(node: Node, gateway: str, session: bool) -> Iterator[Line]:
    yield settings_line(node)
    if not node.settings:
        for name in ("agent", "rows", "images", "sandbox", "loops", "port"):
            yield Line(WARN, name, "not tried: the settings are wrong", "correct them, then run this again")
    else:
        yield agent_line(node.settings)
        yield from row_lines(node)
        yield sandbox_line(node)
        yield loops_line(node)
        yield port_line(node.settings)
    yield clock_line()
    for name, url in (("clock_agent", os.environ.get("AGENT_SERVER_URL", "")), ("clock_gw", gateway)):
        if url:
            yield skew_line(name, url)
    if session:
        yield session_line(node.demo)


def settings_line(node: Node) -> Line:
    if wrong := node.faults.get("settings"):
        return Line(
            FAIL, "settings", str(wrong), "correct the variable; `.venv/bin/python -m agent_server --help` lists all"
        )
    settings = node.settings
    return Line(
        OK,
        "settings",
        f"train {settings.train_concurrency}, eval {settings.eval_concurrency} at once, {settings.address}",
    )


def agent_line(settings: Settings) -> Line:
    try:
        load_agent(settings)
    except StackError as wrong:
        return Line(FAIL, "agent", str(wrong), "correct AGENT_SERVER_AGENT or AGENT_SERVER_AGENT_CONFIG")
    return Line(OK, "agent", settings.agent)


def row_lines(node: Node) -> Iterator[Line]:
    if node.is_unbuilt_demo:
        how = "bash scripts/serve_agents.sh builds them at its start; or set R2E_DATA_PATH and R2E_SIF_DIR"
        yield Line(WARN, "rows", f"none given, and the demo is not built in {node.demo}", how)
        yield Line(WARN, "images", "not tried: there are no rows", how)
        return
    if wrong := node.faults.get("rows"):
        yield Line(
            FAIL,
            "rows",
            str(wrong),
            "give R2E_DATA_PATH readable rows in a form of docs/datasets.md (parquet or JSONL)",
        )
    else:
        yield Line(
            OK,
            "rows",
            ", ".join(f"{len(node.catalog.ids(mode))} {mode}" for mode in MODES) + f" in {node.settings.data_path}",
        )
    if wrong := node.faults.get("images"):
        yield Line(
            FAIL,
            "images",
            str(wrong),
            "fetch or build them into R2E_SIF_DIR, each as its name with / and : replaced by __, plus .sif",
        )
    elif node.images is None:
        yield Line(
            WARN, "images", "not tried: the rows that name them cannot be read", "correct the rows, then run this again"
        )
    else:
        yield Line(OK, "images", f"all that the rows name ({len(node.images)}) are in {node.settings.sif_dir}")


def sandbox_line(node: Node) -> Line:
    try:
        apptainer.find_apptainer()
    except StackError:
        return Line(WARN, "sandbox", "not tried: there is no apptainer", "see the line apptainer")
    if not (image := node.an_image()):
        return Line(
            WARN,
            "sandbox",
            "not tried: there is no image",
            "put the rows' images into R2E_SIF_DIR, or bash setup/demo/image.sh .venv/bin/python .cache/demo",
        )
    settings, remedy = (
        node.settings,
        "bash setup/apptainer.sh as root; then see the lines namespaces, squashfs, memory and loops",
    )
    with tempfile.TemporaryDirectory(prefix="swe-rl-check-") as scratch:
        started = time.monotonic()
        try:
            shell = apptainer.start(
                image, scratch=Path(scratch), env={}, start_timeout_s=settings.sandbox_start_timeout_s, limits=settings.sandbox_limits,
                network=settings.sandbox_network,
            )  # fmt: skip
            try:
                result = shell.run("true", cwd="/", timeout_s=settings.command_timeout_s)
            finally:
                shell.close()
        except StackError as failed:
            return Line(FAIL, "sandbox", f"{image.name}: {failed}", remedy)
        seconds = time.monotonic() - started
    if result.returncode != 0:
        return Line(FAIL, "sandbox", f"{image.name}: `true` ended with {result.returncode}: {result.output}", remedy)
    if left := living_after(GONE_S):
        return Line(
            FAIL,
            "sandbox",
            f"{image.name}: processes outlived it: {left}",
            "bash setup/apptainer.sh as root; apptainer must give a sandbox a PID namespace",
        )
    return Line(OK, "sandbox", f"{image.name} started, ran `true` and stopped in {seconds:.2f} s")


def loops_line(node: Node) -> Line:
    """A leaked device is one that is unconfigured at two looks, as for the server's own sweep."""
    folders = {node.settings.sif_dir.resolve(), (node.demo / "images").resolve()}
    first = {name for folder in folders for name in find_unconfigured(folder)}
    if first:
        time.sleep(LOOK_AGAIN_S)
    leaked = sorted(first & {name for folder in folders for name in find_unconfigured(folder)})
    if leaked:
        remedy = f"the server's next start lets them go, or as root: losetup -d {' '.join(f'/dev/{name}' for name in leaked)}"
        return Line(WARN, "loops", f"left attached by killed sandbox starts: {', '.join(leaked)}", remedy)
    used, most = len(list(BLOCK_DEVICES.glob("loop*/loop"))), most_loops()
    needed = node.settings.train_concurrency + node.settings.eval_concurrency
    found = f"{used} in use, none leaked, apptainer takes at most {most}"
    if not Path("/dev/loop-control").exists():
        return Line(
            WARN,
            "loops",
            "there is no /dev/loop-control",
            "modprobe loop (a container: --privileged); without it images must be mounted by squashfuse or be folders",
        )
    if used >= most:
        return Line(
            FAIL,
            "loops",
            found,
            f"let go what is not used (losetup -a, losetup -d), or raise `max loop devices` in {APPTAINER_CONF}",
        )
    if most - used < needed:
        return Line(
            WARN,
            "loops",
            f"{found}; {needed} sandboxes at once need one each",
            f"raise `max loop devices` in {APPTAINER_CONF}",
        )
    return Line(OK, "loops", found)


def most_loops() -> int:
    """Apptainer's own limit; 256 as it comes."""
    try:
        text = APPTAINER_CONF.read_text()
    except OSError:
        return 256
    values = [line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("max loop devices")]
    return int(values[-1]) if values and values[-1].isdigit() else 256


def port_line(settings: Settings) -> Line:
    try:
        check_port(settings)
    except (ConfigError, OSError) as wrong:
        if _is_agent_server(settings.address):
            return Line(OK, "port", f"an agent server listens on {settings.address} already")
        return Line(
            FAIL,
            "port",
            str(wrong),
            "`ss -ltnp` shows who listens; stop it, or set AGENT_SERVER_PORT (and AGENT_SERVER_HOST to an address of this machine)",
        )
    return Line(OK, "port", f"{settings.address} is free")


def _is_agent_server(address: str) -> bool:
    try:
        return "limits" in requests.get(f"http://{address}/healthz", timeout=5).json()
    except (requests.RequestException, ValueError, TypeError):
        return False


def clock_line() -> Line:
    """What the kernel knows of its clock (adjtimex with nothing to set)."""
    timex = (ctypes.c_char * TIMEX_BYTES)()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        return Line(
            WARN,
            "clock",
            f"its state cannot be read: {os.strerror(ctypes.get_errno())}",
            "see `timedatectl` on the host that it is NTP-synchronised",
        )
    if state == TIME_ERROR:
        return Line(
            WARN,
            "clock",
            "not synchronised by NTP",
            "run chrony or systemd-timesyncd on the host; time limits are monotonic, but logs and TLS need the time of day",
        )
    off_by = int.from_bytes(timex.raw[MICROSECONDS_OFFSET : MICROSECONDS_OFFSET + 8], sys.byteorder, signed=True)
    return Line(OK, "clock", f"synchronised, to within {off_by / 1e6:.2g} s")


def skew_line(name: str, url: str) -> Line:
    """Our clock against the Date header of whatever answers there; that has seconds, and half of the way there is left out."""
    try:
        with requests.Session() as http:
            http.trust_env = False  # neither the client nor the agents use a proxy that the environment names
            asked = time.time()
            answer = http.get(url, timeout=5, allow_redirects=False, stream=True)
            here = (asked + time.time()) / 2
        there = parsedate_to_datetime(answer.headers["Date"]).timestamp() + 0.5
    except (requests.RequestException, KeyError, ValueError) as lost:
        return Line(
            WARN,
            name,
            f"{url} gives no date: {type(lost).__name__}: {lost}",
            "is it up, and the URL right? Its clock was not compared",
        )
    if abs(here - there) > SKEW_S:
        return Line(
            WARN,
            name,
            f"{url} is {there - here:+.0f} s from this machine's clock",
            "synchronise both by NTP: logs of the two cannot be laid side by side",
        )
    return Line(OK, name, f"{url} is within {SKEW_S:g} s of this machine's clock")


def session_line(demo: Path) -> Line:
    try:
        return Line(OK, "session", run_session(demo))
    except SessionFault as wrong:
        return Line(FAIL, "session", str(wrong), wrong.remedy)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m setup.check", description="The part of setup/check.sh that needs the server's code."
    )
    parser.add_argument("--failed", type=int, default=0, help="1: a check before these has FAILed")
    parser.add_argument("--session", action="store_true", help="also run one scripted session of the demo rows")
    parser.add_argument("--gateway", default="", help="URL of the trainer's gateway, to compare clocks")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    become_subreaper()  # so that nothing we start can leave our tree
    node = Node(dict(os.environ), Path(os.environ.get("SWE_RL_CACHE") or ROOT / ".cache") / "demo")
    failed = bool(given.failed)
    try:
        for line in lines(node, given.gateway, given.session):
            print(line, flush=True)
            failed |= line.status == FAIL
    except KeyboardInterrupt:
        return 130
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
