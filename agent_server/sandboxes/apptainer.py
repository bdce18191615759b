"""Apptainer sandboxes: one `apptainer exec` for each, writes to a tmpfs, no host paths, no capabilities, and a network
of its own, which reaches nothing unless it is connected.

Where a layer is to be made, writes go to a folder of the host instead. Later sandboxes see it read-only below their
tmpfs, and see no path of it.

Still readable inside: the file names of the image and of the sandbox's cgroup, the name of the user's home directory,
/etc/hosts, /sys.
Where the server is not root, a sandbox holds only `sessiondir max size` MiB of files (apptainer.conf, 64 by default).
Invariant: a sandbox is one child process; when it ends, everything in it has ended, and no mount or loop device stays.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agent_server.sandboxes.base import NO_VARIABLES
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.network import SandboxNetwork
from agent_server.sandboxes.network_rules import RESOLVER
from agent_server.sandboxes.orphans import LINK_PREFIX, record_processes
from agent_server.sandboxes.shell import PersistentShell
from agent_server.sandboxes.shell_code import BASH
from agent_server.setting_types import Binds, Networks
from client.errors import ImageCorrupt, ImageMissing, SandboxStartFailed, SetupError

SIF_MAGIC, SIF_MAGIC_OFFSET = b"SIF_MAGIC", 32
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CORRUPT_IMAGE_MESSAGES = ("while mounting image", "could not open image", "image format not recognized")


def find_apptainer() -> str:
    """Path of the program. Raises SetupError."""
    if path := shutil.which("apptainer"):
        return path
    raise SetupError(
        "apptainer must be on the PATH; install it with `bash setup/apptainer.sh` (Debian 12, 13) or from apptainer.org"
    )


def image_path(image_dir: Path, image_name: str) -> Path:
    """Path of an image: `/` and `:` become `__`, plus `.sif`. An unpacked image is a directory without the suffix."""
    stem = image_name.replace("/", "__").replace(":", "__")
    directory = image_dir / stem
    return directory if directory.is_dir() else image_dir / f"{stem}.sif"


def check_image(path: Path) -> None:
    """Check that an image exists and is a SIF file, without mounting it. Raises ImageMissing, ImageCorrupt."""
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
            f"image {path} is not a SIF file (no {SIF_MAGIC.decode()} at byte {SIF_MAGIC_OFFSET}); "
            "delete it and fetch it again"
        )


def start(
    image: Path,
    *,
    scratch: Path,
    env: dict[str, str],
    start_timeout_s: float,
    default_env: Mapping[str, str] = NO_VARIABLES,
    limits: Limits | None = None,
    network: bool = False,
    allowed_networks: Networks = (),
    binds: Binds = (),
    layer: Path | None = None,
    make_layer: Path | None = None,
) -> PersistentShell:
    """Start a sandbox of `image`.

    `scratch`: the session's scratch folder, in which the processes are recorded. `env`: variables inside, in place of
    the image's. `default_env`: variables inside where the image does not set them.
    `network`: a way outside, but to private networks only if `allowed_networks` has them; else there is none.
    `binds`: host folders to mount read-only. `make_layer`: an empty folder for everything that is written; the sandbox
    has no limits then. `layer`: such a folder of an ended sandbox of the same image, whose files are in the image's
    place.
    Raises ImageMissing, ImageCorrupt, SandboxStartFailed, SetupError; a failed start leaves nothing behind.
    """
    check_image(image)
    apptainer = find_apptainer()
    # Apptainer stores its search path and settings where the sandbox can read them, and APPTAINER_ variables of the
    # host would bind folders or pass variables, so it gets none of this process's environment.
    host_env = {"PATH": f"{os.path.dirname(apptainer)}:{SYSTEM_PATH}"}
    try:
        with tempfile.TemporaryDirectory(prefix=LINK_PREFIX) as folder:
            link = Path(folder, image.name)  # the path in the command can be read inside, so it names no host folder
            link.symlink_to(image.resolve())
            overlay = Path(folder, "layer")
            if written := make_layer or layer:
                overlay.symlink_to(written.resolve())
            cgroup = Cgroup.create(scratch, memory_bytes=limits.memory_bytes, tasks=limits.tasks) if limits else None
            options = _exec_options(env, network, binds)
            options += ["--overlay", str(overlay)] if make_layer else ["--writable-tmpfs"]
            options += ["--overlay", f"{overlay}:ro"] if layer else []
            argv = [apptainer, "--silent", "exec", *options, str(link)]
            shell = PersistentShell(
                [*argv, *BASH, "-s"],
                start_timeout_s=start_timeout_s,
                env=host_env,
                default_env=default_env,
                limits=limits,
                cgroup=cgroup,
            )
    except SandboxStartFailed as error:
        if any(message in str(error).lower() for message in CORRUPT_IMAGE_MESSAGES):
            raise ImageCorrupt(f"image {image} cannot be opened; delete it and fetch it again: {error}") from error
        raise
    try:
        if network:
            shell.network = SandboxNetwork(shell.shell_pid, allowed_networks, start_timeout_s)
        record_processes(scratch, shell.pids)
    except BaseException:
        shell.close()
        raise
    return shell


def _exec_options(env: dict[str, str], network: bool, binds: Binds) -> list[str]:
    options = ["--containall", "--cleanenv", "--no-home", "--pwd", "/"]
    options += ["--no-init"]  # the shell is the PID namespace's first process, which no signal from inside can kill
    options += ["--net", "--network", "none"]
    if network:
        options += ["--dns", str(RESOLVER)]
    if os.geteuid() == 0:
        # Root without CAP_SYS_RESOURCE (containers, hardened hosts) cannot get full capabilities; no task needs any.
        options += ["--no-privs"]
    for host_path, inside in binds:
        options += ["--bind", f"{host_path}:{inside}:ro"]
    for name, value in env.items():
        options += ["--env", f"{name}={value}"]
    return options
