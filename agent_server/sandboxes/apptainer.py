"""Apptainer sandboxes: one `apptainer exec` a sandbox, writes to a tmpfs, no network, no host paths, no capabilities.

Invariant: a sandbox is one child process; when it ends, everything in it has ended, and no mount or loop device stays.
"""

import os
import shutil
from pathlib import Path

from agent_server.sandboxes.shell import PersistentShell
from client.errors import ImageCorrupt, ImageMissing, SandboxStartFailed, SetupError

SIF_MAGIC, SIF_MAGIC_OFFSET = b"SIF_MAGIC", 32
CORRUPT_SIGNS = ("while mounting image", "could not open image", "image format not recognized")


def find_apptainer() -> str:
    """Path of the program. Raises SetupError with the remedy."""
    if path := shutil.which("apptainer"):
        return path
    raise SetupError("apptainer is not on the PATH; install it with `bash setup/apptainer.sh` (Debian 12, 13) or from apptainer.org")


def image_path(image_dir: Path, image_name: str) -> Path:
    """Where the image of that name lies: `/` and `:` become `__`, plus `.sif`; an unpacked directory has no suffix."""
    stem = image_name.replace("/", "__").replace(":", "__")
    directory = image_dir / stem
    return directory if directory.is_dir() else image_dir / f"{stem}.sif"


def check_image(path: Path) -> None:
    """Cheap look at an image without mounting it. Raises ImageMissing, ImageCorrupt."""
    if path.is_dir():
        return
    try:
        with path.open("rb") as image:
            image.seek(SIF_MAGIC_OFFSET)
            magic = image.read(len(SIF_MAGIC))
    except FileNotFoundError:
        raise ImageMissing(f"image {path} does not exist; fetch or build it, or point R2E_SIF_DIR at the folder that holds it") from None
    if magic != SIF_MAGIC:
        raise ImageCorrupt(f"image {path} is not a SIF file (no {SIF_MAGIC.decode()} at byte {SIF_MAGIC_OFFSET}); delete it and fetch it again")


def start(image: Path, *, scratch: Path, env: dict[str, str], start_timeout_s: float) -> PersistentShell:
    """A running sandbox of `image`. Raises ImageMissing, ImageCorrupt, SandboxStartFailed; leaves nothing of a failed start."""
    check_image(image)
    argv = [find_apptainer(), "--silent", "exec", "--containall", "--cleanenv", "--writable-tmpfs", "--no-home"]
    argv += ["--net", "--network", "none", "--pwd", "/"]
    # Root without CAP_SYS_RESOURCE (containers, hardened hosts) cannot ask for full capabilities, and no task needs any.
    argv += ["--no-privs"] if os.geteuid() == 0 else []
    for name, value in env.items():
        argv += ["--env", f"{name}={value}"]
    try:
        return PersistentShell([*argv, str(image), "bash", "--noprofile", "--norc", "-s"], scratch=scratch, start_timeout_s=start_timeout_s)
    except SandboxStartFailed as failed:
        if any(sign in str(failed).lower() for sign in CORRUPT_SIGNS):
            raise ImageCorrupt(f"image {image} cannot be opened; delete it and fetch it again: {failed}") from failed
        raise
