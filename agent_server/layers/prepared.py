"""Layers with a row's prepared repository, as the agent finds it.

Invariant: a sandbox on such a layer starts as if its repository had just been prepared.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_server.config import Settings
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.placement import GradingSandboxStrategy
from agent_server.layers.cache import LayerCache
from agent_server.layers.key import layer_key
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

OVERLAY, STATE = "overlay", "state.json"


@dataclass(frozen=True, slots=True)
class PreparedRepository:
    """`layer`: for apptainer.start. `state`: for the strategy's `use_prepared`."""

    layer: Path
    state: str


def can_prepare(settings: Settings, task: Task) -> bool:
    """Whether the row's repository can be prepared once for all its sessions.

    Not where a set-up command runs in each sandbox before, nor from an unpacked image, whose changes a file's time does
    not show. The kernel lets only root make the overlay's marks of removed files.
    """
    image = apptainer.image_path(settings.sif_dir, task.image_name)
    return settings.prepared_mib > 0 and not settings.setup_command and os.geteuid() == 0 and not image.is_dir()


@contextmanager
def prepared_repository(
    settings: Settings,
    dataset: Dataset,
    task: Task,
    strategy: GradingSandboxStrategy,
    start: Callable[[Path], AbstractContextManager[Sandbox]],
) -> Iterator[PreparedRepository]:
    """The row's prepared repository, until the block ends. `start`: a sandbox that writes to the given folder, for the
    first session. Raises StackError."""

    def make(folder: Path) -> None:
        overlay = folder / OVERLAY
        overlay.mkdir()
        with start(overlay) as sandbox:
            state = strategy.prepare(dataset, task, sandbox)
        (folder / STATE).write_text(state)

    cache = LayerCache(settings.prepared_dir, settings.prepared_mib << 20)
    with cache.open(layer_key(settings, dataset, task), make) as folder:
        yield PreparedRepository(folder / OVERLAY, (folder / STATE).read_text())
