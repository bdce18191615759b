"""Checks of sandboxes: one start, command and stop, and the loop devices that mount their images.

Invariant: the sandbox has ended when `check_sandbox` returns.
"""

import tempfile
import time
from pathlib import Path

from agent_server.config import Settings
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.loop_devices import BLOCK_DEVICES, find_unconfigured
from client.errors import StackError
from setup.check.node import Node
from setup.check.result import FAIL, OK, WARN, CheckResult
from setup.check.session import EXIT_TIMEOUT_S, living_descendants

APPTAINER_CONF = Path("/etc/apptainer/apptainer.conf")
SECOND_SCAN_S = 0.5  # a sandbox start leaves a device unconfigured for a millisecond


def check_sandbox(node: Node, settings: Settings) -> CheckResult:
    try:
        apptainer.find_apptainer()
    except StackError:
        return CheckResult(WARN, "sandbox", "not tried: there is no apptainer", "see the line apptainer")
    if not (image := node.any_image()):
        remedy = "put the rows' images into R2E_SIF_DIR, or bash setup/demo/image.sh .venv/bin/python .cache/demo"
        return CheckResult(WARN, "sandbox", "not tried: there is no image", remedy)
    with tempfile.TemporaryDirectory(prefix="swe-rl-check-") as scratch:
        started = time.monotonic()
        try:
            shell = apptainer.start(
                image,
                scratch=Path(scratch),
                env={},
                start_timeout_s=settings.sandbox_start_timeout_s,
                limits=settings.sandbox_limits,
                network=settings.sandbox_network,
                allowed_networks=settings.sandbox_allowed_networks,
            )
            try:
                result = shell.run("true", cwd="/", timeout_s=settings.command_timeout_s)
            finally:
                shell.close()
        except StackError as error:
            return _failed(image, str(error))
        seconds = time.monotonic() - started
    if result.returncode != 0:
        return _failed(image, f"`true` ended with {result.returncode}: {result.output}")
    if pids := living_descendants(EXIT_TIMEOUT_S):
        remedy = "bash setup/apptainer.sh as root; apptainer must give a sandbox a PID namespace"
        return CheckResult(FAIL, "sandbox", f"{image.name}: processes outlived it: {pids}", remedy)
    return CheckResult(OK, "sandbox", f"{image.name} started, ran `true` and stopped in {seconds:.2f} s")


def _failed(image: Path, found: str) -> CheckResult:
    remedy = "bash setup/apptainer.sh as root; then see the lines namespaces, squashfs, memory and loops"
    return CheckResult(FAIL, "sandbox", f"{image.name}: {found}", remedy)


def check_loop_devices(node: Node, settings: Settings) -> CheckResult:
    """A leaked device is unconfigured in two scans, as in the server's own sweep."""
    folders = {settings.sif_dir.resolve(), (node.demo / "images").resolve()}
    if leaked := _leaked_devices(folders):
        devices = " ".join(f"/dev/{name}" for name in leaked)
        remedy = f"the server's next start detaches them, or as root: losetup -d {devices}"
        return CheckResult(WARN, "loops", f"left attached by killed sandbox starts: {', '.join(leaked)}", remedy)
    used, most = len(list(BLOCK_DEVICES.glob("loop*/loop"))), most_loop_devices()
    needed = settings.train_concurrency + settings.eval_concurrency
    found = f"{used} in use, none leaked, apptainer takes at most {most}"
    if not Path("/dev/loop-control").exists():
        remedy = "modprobe loop (a container: --privileged), or mount images by squashfuse, or unpack them to folders"
        return CheckResult(WARN, "loops", "/dev/loop-control does not exist", remedy)
    if used >= most:
        remedy = f"detach unused devices (losetup -a, losetup -d), or raise `max loop devices` in {APPTAINER_CONF}"
        return CheckResult(FAIL, "loops", found, remedy)
    if most - used < needed:
        found += f"; {needed} concurrent sandboxes need one each"
        return CheckResult(WARN, "loops", found, f"raise `max loop devices` in {APPTAINER_CONF}")
    return CheckResult(OK, "loops", found)


def _leaked_devices(folders: set[Path]) -> list[str]:
    first = {name for folder in folders for name in find_unconfigured(folder)}
    if not first:
        return []
    time.sleep(SECOND_SCAN_S)
    return sorted(first & {name for folder in folders for name in find_unconfigured(folder)})


def most_loop_devices() -> int:
    """Apptainer's own limit; its default is 256."""
    try:
        text = APPTAINER_CONF.read_text()
    except OSError:
        return 256
    values = [line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("max loop devices")]
    return int(values[-1]) if values and values[-1].isdigit() else 256
