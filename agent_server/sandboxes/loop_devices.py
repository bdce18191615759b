"""Detaches loop devices that killed sandbox starts left attached.

Apptainer attaches an image to a loop device and then configures the device. A start that is killed between the two
leaves the device attached.
Invariant: only devices of images in the server's folder are detached, and only after two sweeps found them
unconfigured: a running start is in that state for a millisecond. (A device in use stays until its last user.)
"""

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)
LOOP_CLR_FD = 0x4C01  # linux/loop.h
BLOCK_DEVICES = Path("/sys/block")


class LoopDeviceSweeper:
    """Sweeps for devices of images in one folder."""

    def __init__(self, image_dir: Path):
        self._image_dir = image_dir.resolve()
        self._suspects: set[str] = set()

    def sweep(self) -> list[str]:
        """Detach the devices that are unconfigured now and were so at the last sweep. Returns their names."""
        unconfigured = set(find_unconfigured(self._image_dir))
        stale = sorted(unconfigured & self._suspects)
        self._suspects = unconfigured
        return [name for name in stale if _detach(name)]


def find_unconfigured(image_dir: Path) -> list[str]:
    """Devices of images in that folder (resolved) without the offset and `autoclear` that Apptainer sets on each."""
    return [
        loop.parent.name
        for loop in BLOCK_DEVICES.glob("loop*/loop")
        if image_dir in Path(_read(loop / "backing_file")).parents
        and _read(loop / "autoclear") == _read(loop / "offset") == "0"
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # detached meanwhile


def _detach(name: str) -> bool:
    try:
        device = os.open(f"/dev/{name}", os.O_RDONLY)
        try:
            fcntl.ioctl(device, LOOP_CLR_FD)
        finally:
            os.close(device)
    except OSError as error:
        log.warning("/dev/%s stays attached to an image, because it cannot be detached: %s", name, error)
        return False
    log.warning("detached /dev/%s, which a killed sandbox start had left attached", name)
    return True
