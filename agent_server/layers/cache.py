"""Cache of layers on disk: a folder for each key, made once and then only read.

Any number of processes use it. A kernel lock per key makes sure that one process makes a layer while others wait, and
that a layer in use stays.
Invariant: a layer is whole or absent, and never changes. Nothing that a killed process left is used.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
LOCK = ".lock"  # stays when its layer is removed: a process may be waiting at it
SIZE = "bytes"  # file in a layer: its disk space
EVICTION = "eviction"  # one at a time: another one would remove what this one has listed


class LayerCache:
    """`folder`: of this cache alone, made if missing. `max_bytes`: the size above which the layers that were not used
    for longest are removed. Layers in use stay, so the size can be exceeded."""

    def __init__(self, folder: Path, max_bytes: int):
        self._folder, self._max_bytes = folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def open(self, key: str, make: Callable[[Path], None]) -> Iterator[Path]:
        """The layer's folder, until the block ends. Where it is missing, `make` fills a new folder; what it raises
        passes through. `key`: a file name."""
        layer = self._folder / key
        with self._locked(key, fcntl.LOCK_SH) as lock:
            while not layer.is_dir():
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not layer.is_dir():  # another process may have made it meanwhile
                    self._make(layer, make)
                    with self._locked(EVICTION, fcntl.LOCK_EX):
                        self._evict(keep=key)
                fcntl.flock(lock, fcntl.LOCK_SH)  # not atomic: the layer may be removed before it is locked again
            os.utime(layer)
            yield layer

    def _make(self, layer: Path, make: Callable[[Path], None]) -> None:
        partial = layer.with_suffix(PARTIAL)
        _remove(partial)
        partial.mkdir(mode=0o700)
        try:
            make(partial)
            (partial / SIZE).write_text(str(disk_bytes(partial)))
            partial.rename(layer)
        except BaseException:
            _remove(partial)
            raise

    def _evict(self, keep: str) -> None:
        """Remove what killed processes left, then the oldest layers until the others fit."""
        folders = [path for path in self._folder.iterdir() if path.is_dir()]
        for partial in (path for path in folders if path.suffix == PARTIAL):
            self._remove_unused(partial)
        layers = sorted((path for path in folders if not path.suffix), key=lambda path: path.stat().st_mtime)
        sizes = {path: int((path / SIZE).read_text()) for path in layers}
        excess = sum(sizes.values()) - self._max_bytes
        for layer in layers:
            if excess > 0 and layer.name != keep and self._remove_unused(layer):
                excess -= sizes[layer]

    def _remove_unused(self, folder: Path) -> bool:
        """Remove a folder whose key no process uses. Returns whether it was removed."""
        try:
            with self._locked(folder.stem, fcntl.LOCK_EX | fcntl.LOCK_NB):
                _remove(folder)
                return True
        except BlockingIOError:
            return False

    @contextmanager
    def _locked(self, key: str, mode: int) -> Iterator[int]:
        descriptor = os.open(self._folder / f"{key}{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, mode)
            yield descriptor
        finally:
            os.close(descriptor)


def disk_bytes(folder: Path) -> int:
    """Disk space of the files below a folder, in bytes."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512 for parent, _, names in os.walk(folder) for name in names
    )


def _remove(folder: Path) -> None:
    """Remove a folder whose files may have any mode. A layer disappears at once, so that none is half removed."""
    if not folder.is_dir():
        return
    if folder.suffix != PARTIAL:
        folder = folder.rename(folder.with_suffix(PARTIAL))
    shutil.rmtree(folder)
