"""Converts an OCI layout to an image that sandboxes start from, and tries the image, both with Apptainer.

Invariant: a successful build proves nothing; only a sandbox that ran a command does (`--verify`).
"""

import os
import tempfile
from pathlib import Path

import tenacity

from agent_server.sandboxes import apptainer
from client.errors import SandboxError, SandboxStartFailed, SetupError
from setup.images.plan import ImageFormat
from setup.images.programs import ProgramRunner

TRIAL_TIMEOUT_S = 120.0
TRIAL_ATTEMPTS = 2


def build(folder: Path, form: ImageFormat, programs: ProgramRunner, jobs: int) -> Path:
    """Build `folder/layout` into an image beside it, with 1/`jobs` of the cores. Raises SetupError with
    Apptainer's message."""
    # The source is relative, because it becomes a label of the image.
    image, source = folder / ("image.sif" if form == "sif" else "image"), "oci:layout"
    if form == "directory":
        options = ["--sandbox"]
    else:
        processors = max(1, (os.cpu_count() or 1) // jobs)
        options = ["--mksquashfs-args", f"-comp zstd -Xcompression-level 3 -processors {processors}"]
    # Without it, users other than root could not delete or enter every folder of an image.
    options += [] if os.geteuid() == 0 else ["--fix-perms"]
    # Layers are shared by the OCI layout already. Apptainer's own cache fails under concurrent builds: of 40
    # builds, 8 at a time, 3 failed on its half-written index ("unexpected end of JSON input"), and shared layers
    # were downloaded several times.
    command = [apptainer.find_apptainer(), "--silent", "build", "--disable-cache", *options, image.name, source]
    result = programs.run(command, folder, APPTAINER_TMPDIR=str(folder / "tmp"))
    if result.returncode != 0 or not image.exists():
        message = result.messages or "no message"
        raise SetupError(f"apptainer cannot build the image (exit code {result.returncode}): {message}")
    return image


def try_image(image: Path) -> str:
    """Run `env true` (the program, not bash's builtin) in a sandbox of the image. Returns the reason of a failure,
    "" if it worked."""
    start = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(SandboxStartFailed),
        stop=tenacity.stop_after_attempt(TRIAL_ATTEMPTS),
        reraise=True,
    )
    try:
        return start(_run_true, image)
    except SandboxError as error:
        return str(error)


def _run_true(image: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        shell = apptainer.start(image, scratch=Path(scratch), env={}, start_timeout_s=TRIAL_TIMEOUT_S)
        try:
            result = shell.run("env true", cwd="/", timeout_s=TRIAL_TIMEOUT_S)
        finally:
            shell.close()
    if result.returncode == 0:
        return ""
    return f"`true` ended with {result.returncode} in its sandbox: {result.output[-500:].strip()}"
