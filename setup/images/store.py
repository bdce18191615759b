"""The image folder: its images, half-built images, shared layers, and images that no row names.

    R2E_SIF_DIR/NAME.sif, NAME/          images, complete
    R2E_SIF_DIR/.fetching/lock           held by the one command that works in the folder
                         /alive          held (shared) by every program that it started
                         /blobs/         layers, complete, shared by all images until the last of them is built
                         /builds/NAME/   half-built images; leftovers if no process holds `alive`
Invariant: an image under its final name is complete: it was built in `builds`, synced to the disk, and renamed.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agent_server.sandboxes.apptainer import check_image, image_path
from client.errors import ConfigError, StorageError


class ImageStore:
    """The folder R2E_SIF_DIR. Raises ConfigError if it cannot be made."""

    def __init__(self, root: Path):
        self.root, self.work = root.absolute(), root.absolute() / ".fetching"
        self.blobs, self.builds, self.alive = self.work / "blobs", self.work / "builds", self.work / "alive"
        try:
            for folder in (self.blobs / "sha256", self.builds):
                folder.mkdir(parents=True, exist_ok=True)
            self.alive.touch()
        except OSError as error:
            raise ConfigError(f"R2E_SIF_DIR={root} cannot be written: {error}; set it to a writable folder") from error

    @contextmanager
    def locked(self, on_wait: Callable[[str], None]) -> Iterator[int]:
        """Hold the folder exclusively, without the leftovers of a killed command; yields how many it removed. `on_wait`
        gets a message before each wait."""
        with (self.work / "lock").open("w") as lock, self.alive.open("w") as alive:
            _lock(lock, lambda: on_wait(f"another command fetches into {self.root}; waiting for it"))
            _lock(alive, lambda: on_wait(f"programs of a killed command still write in {self.root}; waiting for them"))
            leftovers = list(self.builds.iterdir())
            for path in leftovers:
                remove(path)
            fcntl.flock(alive, fcntl.LOCK_UN)
            yield len(leftovers)

    def check_unique_files(self, names: Collection[str]) -> None:
        """Raises ConfigError if the images of two names would be the same file."""
        by_file: dict[Path, str] = {}
        for name in names:
            path = _sif(self.root, name)
            if (other := by_file.setdefault(path, name)) != name:
                raise ConfigError(
                    f"the images {other} and {name} of the rows would both be the file {path.name}; rename one"
                )

    def free(self) -> int:
        """The free bytes of its file system."""
        return shutil.disk_usage(self.root).free

    def path(self, name: str) -> Path:
        return image_path(self.root, name)

    def images(self) -> list[Path]:
        """Everything in the folder that looks like an image."""
        return sorted(
            path
            for path in self.root.iterdir()
            if not path.name.startswith(".") and (path.suffix == ".sif" or (path / ".singularity.d").is_dir())
        )

    def unreferenced(self, names: Collection[str]) -> list[Path]:
        """The images of none of these names."""
        sifs = {_sif(self.root, name) for name in names}
        referenced = sifs | {sif.with_suffix("") for sif in sifs}
        return [path for path in self.images() if path not in referenced]

    def stored(self) -> dict[str, int]:
        """The stored layers and other blobs, digest -> bytes."""
        blobs = {}
        for entry in os.scandir(self.blobs / "sha256"):
            if len(entry.name) == 64:  # other names are downloads in progress
                blobs[f"sha256:{entry.name}"] = entry.stat().st_size
        return blobs

    def remove_blobs(self, digests: Collection[str]) -> None:
        for digest in digests:
            (self.blobs / "sha256" / digest.removeprefix("sha256:")).unlink(missing_ok=True)

    @contextmanager
    def build_folder(self, name: str) -> Iterator[Path]:
        """Yield a folder to build the image in, removed afterwards. Its `layout/` is an OCI layout on the shared
        blobs."""
        folder = self.builds / _sif(self.root, name).stem
        (folder / "layout").mkdir(parents=True)
        (folder / "tmp").mkdir()
        (folder / "layout/blobs").symlink_to(self.blobs)
        try:
            yield folder
        finally:
            remove(folder)

    def publish(self, image: Path, name: str, build_folder: Path) -> Path:
        """Move a built image to its final name, replacing an older one. Raises ImageCorrupt, StorageError, OSError."""
        check_image(image)
        target = _sif(self.root, name) if image.is_file() else _sif(self.root, name).with_suffix("")
        # All files of a directory must be on the disk; one call for the file system is faster than one per file.
        options = ["--file-system"] if image.is_dir() else []
        synced = subprocess.run(["sync", *options, str(image)], capture_output=True, text=True)
        if synced.returncode != 0:
            raise StorageError(
                f"{image} cannot be written to the disk: {synced.stderr.strip()}; check the disk, then run this again"
            )
        older = self.path(name)
        if older.is_dir():  # a rename cannot replace a directory, and the directory would take precedence over a file
            older.rename(build_folder / "before")
        image.rename(target)
        _sync_directory(self.root)
        return target

    def discard(self, image: Path) -> None:
        """Remove an image: first its name, by a rename, then its content. A killed deletion is a leftover."""
        discarded = self.builds / f"discarded {image.name}"
        image.rename(discarded)
        remove(discarded)


def measure_size(path: Path) -> int:
    """The bytes on disk of a file, or of a folder with its content; 0 if it does not exist."""
    try:
        own = path.lstat().st_blocks * 512
        if path.is_dir() and not path.is_symlink():
            return own + sum(measure_size(Path(entry)) for entry in os.scandir(path))
        return own
    except FileNotFoundError:
        return 0


def remove(path: Path) -> None:
    """Remove a file or a folder, including folders that their owner may not write to, which images contain."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for parent, folders, _ in os.walk(path):  # top down, so that a folder is opened up before it is entered
        for name in folders:
            if not os.path.islink(inner := os.path.join(parent, name)):
                os.chmod(inner, 0o700)
    shutil.rmtree(path)


def _sif(root: Path, name: str) -> Path:
    """The file of that name, also if an unpacked directory exists in its place."""
    path = image_path(root, name)
    return path.with_name(f"{path.name}.sif") if path.is_dir() else path


def _lock(file: IO[str], on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
