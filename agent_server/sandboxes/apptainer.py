"""Apptainer sandboxes: one `apptainer exec` a sandbox, writes to a tmpfs, no network, no host paths, no capabilities.

What of the host can still be read inside: the names of the image's file and of the sandbox's cgroup, the user's home directory by name, /etc/hosts, /sys.
As another user than root a sandbox holds only `sessiondir max size` MiB of files (apptainer.conf, 64 as it comes).
Invariant: a sandbox is one child process; when it ends, everything in it has ended, and no mount or loop device stays.
"""

import os
import shutil
import tempfile
from pathlib import Path

from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.orphans import LINK_PREFIX, record_processes
from agent_server.sandboxes.shell import PersistentShell
from agent_server.setting_types import Binds
from client.errors import ImageCorrupt, ImageMissing, SandboxStartFailed, SetupError

SIF_MAGIC, SIF_MAGIC_OFFSET = b"SIF_MAGIC", 32
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CORRUPT_SIGNS = ("while mounting image", "could not open image", "image format not recognized")


def find_apptainer() -> str:
    """Path of the program. Raises SetupError with the remedy."""
    if path := shutil.which("apptainer"):
        return path
    raise SetupError(
        "apptainer is not on the PATH; install it with `bash setup/apptainer.sh` (Debian 12, 13) or from apptainer.org"
    )


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
        raise ImageMissing(
            f"image {path} does not exist; fetch or build it, or point R2E_SIF_DIR at the folder that holds it"
        ) from None
    if magic != SIF_MAGIC:
        raise ImageCorrupt(
            f"image {path} is not a SIF file (no {SIF_MAGIC.decode()} at byte {SIF_MAGIC_OFFSET}); delete it and fetch it again"
        )


def start(
    image: Path,
    *,
    scratch: Path,
    env: dict[str, str],
    start_timeout_s: float,
    limits: Limits | None = None,
    network: bool = False,
    binds: Binds = (),
) -> PersistentShell:
    """A running sandbox of `image`, labelled in `scratch`, with the host's network or none, and `binds` to be read. Raises ImageMissing, ImageCorrupt,
    SandboxStartFailed; leaves nothing of a failed start."""
    check_image(image)
    program = find_apptainer()
    argv = [program, "--silent", "exec", "--containall", "--cleanenv", "--writable-tmpfs", "--no-home", "--pwd", "/"]
    argv += ["--no-init"]  # the shell is the PID namespace's first process, which no signal from inside can end
    argv += [] if network else ["--net", "--network", "none"]
    # Root without CAP_SYS_RESOURCE (containers, hardened hosts) cannot ask for full capabilities, and no task needs any.
    argv += ["--no-privs"] if os.geteuid() == 0 else []
    for host, inside in binds:
        argv += ["--bind", f"{host}:{inside}:ro"]
    for name, value in env.items():
        argv += ["--env", f"{name}={value}"]
    # Apptainer keeps its search path and settings where the sandbox can read them, and APPTAINER_ variables of the host
    # would bind folders or pass variables in: it gets none of our environment.
    clean = {"PATH": f"{os.path.dirname(program)}:{SYSTEM_PATH}"}
    try:
        with tempfile.TemporaryDirectory(prefix=LINK_PREFIX) as folder:  # the name it is started by can be read inside
            name = Path(folder) / image.name
            name.symlink_to(image.resolve())
            shell = PersistentShell(
                [*argv, str(name), "bash", "--noprofile", "--norc", "-s"], start_timeout_s=start_timeout_s, env=clean,
                limits=limits, cgroup=Cgroup.make(scratch, memory_bytes=limits.memory_bytes, tasks=limits.tasks) if limits else None,
            )  # fmt: skip
    except SandboxStartFailed as failed:
        if any(sign in str(failed).lower() for sign in CORRUPT_SIGNS):
            raise ImageCorrupt(f"image {image} cannot be opened; delete it and fetch it again: {failed}") from failed
        raise
    record_processes(scratch, shell.pids)
    return shell
