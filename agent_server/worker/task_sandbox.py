"""A task's sandbox as the settings define it: image, limits, network, folders, threads, set-up command.

Invariant: sessions and `validate` start their sandboxes here: a row is certified under the conditions of its sessions.
"""

from pathlib import Path

from agent_server.config import Settings
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes import apptainer, ownership
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import SandboxStartFailed

# Numeric libraries start as many threads as the machine has cores, in each of their processes. A test that starts a few
# processes would exceed the sandbox's limit on a machine with many cores.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def start_task_sandbox(
    settings: Settings, task: Task, scratch: Path, *, layer: Path | None = None, make_layer: Path | None = None
) -> Sandbox:
    """A fresh sandbox of the task's image. `scratch`: an existing folder for its files. `layer`, `make_layer`: as in
    apptainer.start. Raises StackError."""
    sandbox = apptainer.start(
        apptainer.image_path(settings.sif_dir, task.image_name),
        scratch=scratch,
        env={},
        default_env=dict.fromkeys(THREAD_VARIABLES, str(settings.threads_per_sandbox)),
        start_timeout_s=settings.sandbox_start_timeout_s,
        limits=None if make_layer else settings.sandbox_limits,  # what is written to a layer is not in memory
        network=settings.sandbox_network,
        allowed_networks=settings.sandbox_allowed_networks,
        binds=settings.binds,
        layer=layer,
        make_layer=make_layer,
    )
    if layer:
        return sandbox  # what there was to repair was repaired when the layer was made
    try:
        ownership.repair(sandbox, [REPOSITORY])
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def run_setup_command(settings: Settings, sandbox: Sandbox) -> None:
    """Run AGENT_SERVER_SETUP_COMMAND in the repository. Raises SandboxStartFailed if it does not end with 0."""
    result = sandbox.run(settings.setup_command, cwd=REPOSITORY, timeout_s=settings.sandbox_start_timeout_s)
    if result.returncode != 0:
        raise SandboxStartFailed(
            f"AGENT_SERVER_SETUP_COMMAND must end with 0; it ended with {result.returncode}"
            f"{result.limit and f' ({result.limit})'}: {result.output[-500:]}"
        )
