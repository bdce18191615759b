"""Keys of layers: a digest of everything that a row's prepared repository depends on.

Invariant: two sessions with the same key start from the same files.
"""

import functools
import hashlib
import inspect
import json
import sys
from pathlib import Path

from agent_server import grading
from agent_server.config import Settings
from agent_server.grading.datasets.base import Dataset
from agent_server.sandboxes import apptainer
from agent_server.tasks.task import Task

CODE = Path(grading.__file__).parent


def layer_key(settings: Settings, dataset: Dataset, task: Task) -> str:
    """The key of a row's layer. Raises ImageMissing, ImageCorrupt."""
    image = apptainer.image_path(settings.sif_dir, task.image_name)
    apptainer.check_image(image)
    found = image.stat()
    parts = [
        _digest(_code_of(type(dataset))),
        *(str(image.resolve()), found.st_size, found.st_mtime_ns, found.st_ino),
        settings.grading_sandbox,
        *(f"{host_path}:{inside}" for host_path, inside in settings.binds),
        task.as_dict(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _code_of(dataset: type[Dataset]) -> tuple[str, ...]:
    """The files of the code that prepares a row: this package's, and that of a dataset class from elsewhere."""
    modules = {inspect.getfile(sys.modules[parent.__module__]) for parent in dataset.__mro__[:-1]}
    return tuple(sorted({*map(str, CODE.rglob("*.py")), *modules}))


@functools.cache
def _digest(files: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
