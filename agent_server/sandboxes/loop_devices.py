"""Loop devices that Apptainer left attached: one killed between attaching an image and configuring the device leaves it so.

Invariant: only a device of an image in our folder is let go, and only when it was found unconfigured twice, a sweep apart: a
start that is under way is in that state for a millisecond. (A device that is in use would go on until its last user is gone.)
"""

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)
LOOP_CLR_FD = 0x4C01  # linux/loop.h
BLOCK_DEVICES = Path("/sys/block")


class LoopDeviceSweeper:
    """`images`: the folder whose images count as ours."""

    def __init__(self, images: Path):
        self._images = images.resolve()
        self._suspects: set[str] = set()

    def sweep(self) -> list[str]:
        """Let go of what is unconfigured now and was at the last call; returns the devices' names."""
        found = set(find_unconfigured(self._images))
        left = sorted(found & self._suspects)
        self._suspects = found
        return [name for name in left if _detach(name)]


def find_unconfigured(images: Path) -> list[str]:
    """Devices of images in that folder (resolved) that lack the offset and the `autoclear` that Apptainer sets on every one it uses."""
    return [
        loop.parent.name
        for loop in BLOCK_DEVICES.glob("loop*/loop")
        if images in Path(_read(loop / "backing_file")).parents
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
    except OSError as refused:
        log.warning("/dev/%s is left attached to an image and cannot be let go: %s", name, refused)
        return False
    log.warning("/dev/%s was left attached by a sandbox start that was killed; let go", name)
    return True
