"""From an OCI layout to what a sandbox starts from, and whether it does start. Apptainer does both.

Invariant: what is built is not trusted because apptainer ended well; opening it in a sandbox is the proof (`--verify`).
"""

import os
import tempfile
from pathlib import Path

from agent_server.sandboxes import apptainer
from client.errors import SandboxError, SandboxStartFailed, SetupError
from setup.images.plan import Form
from setup.images.programs import Programs

OPEN_TIMEOUT_S = 120.0


def build(attempt: Path, form: Form, programs: Programs, jobs: int) -> Path:
    """From `attempt/layout` to an image beside it, with 1/`jobs` of the cores. Raises SetupError with what apptainer said."""
    # Relative, because the source's path becomes a label of the image.
    made, source = attempt / ("image.sif" if form == "sif" else "image"), "oci:layout"
    options = (
        ["--sandbox"]
        if form == "directory"
        else [
            "--mksquashfs-args",
            f"-comp zstd -Xcompression-level 3 -processors {max(1, (os.cpu_count() or 1) // jobs)}",
        ]
    )
    # Other users than root could not delete or enter every folder of an image.
    options += [] if os.geteuid() == 0 else ["--fix-perms"]
    # The layers are shared already, and apptainer's own cache does not bear several builds at once: of 40 that it was given, 8 at a time,
    # 3 failed on its half-written index ("unexpected end of JSON input"), and shared layers came several times.
    command = [apptainer.find_apptainer(), "--silent", "build", "--disable-cache", *options, made.name, source]
    ran = programs.run(command, attempt, APPTAINER_TMPDIR=str(attempt / "tmp"))
    if ran.returncode != 0 or not made.exists():
        raise SetupError(f"apptainer cannot build it (exit code {ran.returncode}): {ran.said or 'no message'}")
    return made


def why_broken(image: Path) -> str:
    """What keeps a sandbox of `image` from running `true` (the program, not bash's own); "" if nothing does."""
    for again in (True, False):
        try:
            with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
                shell = apptainer.start(image, scratch=Path(scratch), env={}, start_timeout_s=OPEN_TIMEOUT_S)
                try:
                    ran = shell.run("env true", cwd="/", timeout_s=OPEN_TIMEOUT_S)
                finally:
                    shell.close()
            return (
                ""
                if ran.returncode == 0
                else f"`true` ended with {ran.returncode} in a sandbox of it: {ran.output[-500:].strip()}"
            )
        except SandboxError as broken:
            if not again or not isinstance(broken, SandboxStartFailed):
                return str(broken)
    raise AssertionError("unreachable")
