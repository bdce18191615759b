"""A task's sandbox as the settings define it: image, limits, network, folders, variables, set-up command.

Invariant: sessions and `validate` start their sandboxes here: a row is certified under the conditions of its sessions.
"""

from pathlib import Path

from agent_server.agents.base import Agent, sandbox_env
from agent_server.config import Settings
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import SandboxStartFailed


def start_task_sandbox(settings: Settings, agent: Agent, task: Task, scratch: Path) -> Sandbox:
    """A fresh sandbox of the task's image. `scratch`: an existing folder for its files. Raises StackError."""
    return apptainer.start(
        apptainer.image_path(settings.sif_dir, task.image_name),
        scratch=scratch,
        env=sandbox_env(agent),
        start_timeout_s=settings.sandbox_start_timeout_s,
        limits=settings.sandbox_limits,
        network=settings.sandbox_network,
        binds=settings.binds,
    )


def run_setup_command(settings: Settings, sandbox: Sandbox) -> None:
    """Run AGENT_SERVER_SETUP_COMMAND in the repository. Raises SandboxStartFailed if it does not end with 0."""
    result = sandbox.run(settings.setup_command, cwd=REPOSITORY, timeout_s=settings.sandbox_start_timeout_s)
    if result.returncode != 0:
        raise SandboxStartFailed(
            f"AGENT_SERVER_SETUP_COMMAND must end with 0; it ended with {result.returncode}"
            f"{result.limit and f' ({result.limit})'}: {result.output[-500:]}"
        )
