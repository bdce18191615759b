"""The folder of images: what is there, what is half-made, what is in nobody's rows.

    R2E_SIF_DIR/NAME.sif, NAME/          images, whole
    R2E_SIF_DIR/.fetching/lock           held by the one command that works here
                         /alive          held (shared) by every program that it started
                         /blobs/         layers, whole, shared by all images until the last of them is built
                         /attempts/NAME/ half-made; nobody's as soon as nothing holds `alive`
Invariant: an image under its final name is whole: it was made in `attempts`, written through to the disk, and renamed.
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


class Folder:
    """Raises ConfigError where the folder cannot be made."""

    def __init__(self, root: Path):
        self.root, self.work = root.absolute(), root.absolute() / ".fetching"
        self.blobs, self.attempts, self.alive = self.work / "blobs", self.work / "attempts", self.work / "alive"
        try:
            for folder in (self.blobs / "sha256", self.attempts):
                folder.mkdir(parents=True, exist_ok=True)
            self.alive.touch()
        except OSError as refused:
            raise ConfigError(f"R2E_SIF_DIR={root} cannot be written: {refused}; name a folder that can") from refused

    @contextmanager
    def held(self, on_wait: Callable[[str], None]) -> Iterator[int]:
        """Alone in the folder. Removes what a killed command has left and gives its number; `on_wait` hears why we wait, if we do."""
        with (self.work / "lock").open("w") as lock, self.alive.open("w") as alive:
            _lock(lock, lambda: on_wait(f"another command fetches into {self.root}; waiting for it"))
            _lock(
                alive,
                lambda: on_wait(f"programs of a killed command still write in {self.root}; waiting for their end"),
            )
            left = list(self.attempts.iterdir())
            for path in left:
                remove(path)
            fcntl.flock(alive, fcntl.LOCK_UN)
            yield len(left)

    def refuse_same_files(self, names: Collection[str]) -> None:
        """Raises ConfigError for two names whose images would be one file."""
        by_file: dict[Path, str] = {}
        for name in names:
            if (other := by_file.setdefault(_sif(self.root, name), name)) != name:
                raise ConfigError(
                    f"the rows name images {other} and {name}, which both lie in {_sif(self.root, name).name}; rename one"
                )

    def free(self) -> int:
        """Bytes that may be written to its file system."""
        return shutil.disk_usage(self.root).free

    def path(self, name: str) -> Path:
        return image_path(self.root, name)

    def images(self) -> list[Path]:
        """Everything in the folder that is an image by its looks."""
        return sorted(
            path
            for path in self.root.iterdir()
            if not path.name.startswith(".") and (path.suffix == ".sif" or (path / ".singularity.d").is_dir())
        )

    def unnamed(self, names: Collection[str]) -> list[Path]:
        """Images that no name stands for."""
        wanted = {_sif(self.root, name) for name in names} | {_sif(self.root, name).with_suffix("") for name in names}
        return [path for path in self.images() if path not in wanted]

    def stored(self) -> dict[str, int]:
        """Layers and other blobs that are here, digest -> bytes."""
        found = {}
        for entry in os.scandir(self.blobs / "sha256"):
            if len(entry.name) == 64:  # others are being written
                found[f"sha256:{entry.name}"] = entry.stat().st_size
        return found

    def forget_blobs(self, digests: Collection[str]) -> None:
        for digest in digests:
            (self.blobs / "sha256" / digest.removeprefix("sha256:")).unlink(missing_ok=True)

    @contextmanager
    def attempt(self, name: str) -> Iterator[Path]:
        """A folder for making that image, gone afterwards. Its `layout/` is an OCI layout on the shared blobs."""
        folder = self.attempts / _sif(self.root, name).stem
        (folder / "layout").mkdir(parents=True)
        (folder / "tmp").mkdir()
        (folder / "layout/blobs").symlink_to(self.blobs)
        try:
            yield folder
        finally:
            remove(folder)

    def publish(self, made: Path, name: str, attempt: Path) -> Path:
        """Give what was made its final name, in the place of whatever has it. Raises ImageCorrupt, StorageError, OSError."""
        check_image(made)
        target = _sif(self.root, name) if made.is_file() else _sif(self.root, name).with_suffix("")
        # Of a directory every file must be on the disk, and one call for the file system is faster than one for each.
        synced = subprocess.run(
            ["sync", *(["--file-system"] if made.is_dir() else []), str(made)], capture_output=True, text=True
        )
        if synced.returncode != 0:
            raise StorageError(
                f"{made} cannot be written to the disk: {synced.stderr.strip()}; look at the disk, then run this again"
            )
        if (
            before := self.path(name)
        ).is_dir():  # a directory cannot be replaced by renaming, and would be found before a file
            before.rename(attempt / "before")
        made.rename(target)
        _sync_names(self.root)
        return target

    def discard(self, image: Path) -> None:
        """Its name is gone at once, even where deleting takes long."""
        grave = self.attempts / f"discarded {image.name}"
        image.rename(grave)
        remove(grave)


def size_of(path: Path) -> int:
    """Bytes on disk, of a folder with everything in it; 0 for what is gone."""
    try:
        own = path.lstat().st_blocks * 512
        return (
            own + sum(size_of(Path(entry)) for entry in os.scandir(path))
            if path.is_dir() and not path.is_symlink()
            else own
        )
    except FileNotFoundError:
        return 0


def remove(path: Path) -> None:
    """Also folders that their owner may not write to, as images have them."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for parent, folders, _ in os.walk(path):  # top down: opened before it is entered
        for name in folders:
            if not os.path.islink(inner := os.path.join(parent, name)):
                os.chmod(inner, 0o700)
    shutil.rmtree(path)


def _sif(root: Path, name: str) -> Path:
    """The file of that name, also where an unpacked directory stands for it."""
    path = image_path(root, name)
    return path.with_name(f"{path.name}.sif") if path.is_dir() else path


def _lock(file: IO[str], on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
