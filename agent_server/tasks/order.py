"""Order of the task rows: shuffled epochs for training, if they are shuffled at all, file order for evaluation.

Invariant: pure. A position determines its row, so a restarted server continues an epoch where it was.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from client.errors import NotFound
from client.wire import Mode

MODES: tuple[Mode, ...] = ("train", "eval")


class TaskOrder:
    """Endless sequence of epochs for each mode. `task_ids`: row ids in file order; `seed` shuffles the training, if
    `shuffle`."""

    def __init__(self, task_ids: Mapping[Mode, Sequence[str]], seed: int, *, shuffle: bool = True):
        self._task_ids = task_ids
        self._known = {mode: frozenset(ids) for mode, ids in task_ids.items()}
        self._seed, self._shuffle = seed, shuffle
        # Tens of thousands of rows are not shuffled again for every group.
        self._epoch = lru_cache(maxsize=8)(self._shuffled)

    def task_at(self, mode: Mode, position: int) -> str:
        """Row id at a position in the sequence of epochs."""
        epoch, place = divmod(position, len(self._task_ids[mode]))
        return self._epoch(mode, epoch if mode == "train" else 0)[place]

    def check(self, mode: Mode, task_id: str) -> None:
        """Raises NotFound, with the nearest id."""
        check_task_id(mode, task_id, self._known[mode])

    def _shuffled(self, mode: Mode, epoch: int) -> list[str]:
        ids = list(self._task_ids[mode])
        if mode == "train" and self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(ids)
        return ids


def check_task_id(mode: Mode, task_id: str, known: Collection[str]) -> None:
    """Raises NotFound, with the nearest id."""
    if task_id in known:
        return
    near = get_close_matches(task_id, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise NotFound(f"no {mode} task {task_id!r}{hint}", field="task_id")
