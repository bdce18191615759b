"""Checkpoints on disk: `step_000012/` holds `weights/` (Hugging Face format), `state/` and `manifest.json`.

Invariant: a directory under its final name is whole. It is written under a hidden name beside it and renamed when
complete. A writer that is killed leaves only a hidden directory, which nothing reads and the next save removes.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client.atomic_write import write_text
from trainer.actors.base import Actor

LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint, after `step` optimizer steps."""

    step: int
    directory: Path

    @property
    def weights(self) -> Path:
        return self.directory / "weights"

    @property
    def state(self) -> Path:
        return self.directory / "state"


class Checkpoints:
    """The checkpoints in `directory`, of which the newest `keep` are kept. One process writes at a time."""

    def __init__(self, directory: Path, keep: int = 2):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}: a save would remove its own checkpoint")
        self._directory, self._keep = Path(directory), keep

    def save(self, step: int, actor: Actor) -> Checkpoint:
        """Write the actor's weights and state, then remove all checkpoints but the newest `keep`."""
        for leftover in self._directory.glob(".step_*"):
            shutil.rmtree(leftover)
        checkpoint = Checkpoint(step, self._directory / f"step_{step:06d}")
        with replace_directory(checkpoint.directory) as half_written:
            actor.save_weights(half_written / "weights")
            actor.save_state(half_written / "state")
            files = {str(path.relative_to(half_written)): path.stat().st_size for path in _files(half_written)}
            manifest = {"step": step, "files": files}
            write_text(half_written / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
        for old in self.all()[: -self._keep]:
            shutil.rmtree(old.directory)
        return checkpoint

    def all(self) -> list[Checkpoint]:
        """Every whole checkpoint, oldest first.

        A checkpoint whose files differ in size from its manifest is left out, with a warning.
        """
        checkpoints = []
        for path in self._directory.glob("step_*"):
            if name := _NAME.fullmatch(path.name):
                if _is_whole(path):
                    checkpoints.append(Checkpoint(int(name[1]), path))
                else:
                    LOG.warning("checkpoint %s does not match its manifest and is left out: delete it", path)
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; None where there is none."""
        return max(self.all(), key=lambda checkpoint: checkpoint.step, default=None)


@contextmanager
def replace_directory(target: Path) -> Iterator[Path]:
    """Yields an empty directory to fill; on exit it replaces `target`. On an error `target` stays as it was.

    One writer per target. A writer killed between the two renames leaves `target` missing, never incomplete or mixed.
    """
    target = Path(target)
    half_written, replaced = (target.with_name(f".{target.name}.{suffix}") for suffix in ("partial", "replaced"))
    for leftover in (half_written, replaced):
        if leftover.exists():
            shutil.rmtree(leftover)
    half_written.mkdir(parents=True)
    try:
        yield half_written
    except BaseException:
        shutil.rmtree(half_written)
        raise
    if target.exists():
        target.rename(replaced)
    half_written.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def _is_whole(directory: Path) -> bool:
    try:
        files = json.loads((directory / MANIFEST).read_text())["files"]
        return all((directory / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())
