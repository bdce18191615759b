"""Which group works on which row: training in shuffled epochs, evaluation in file order.

Invariant: the samples of a group share one row, and every row is leased once before any is leased again. The leases
table alone decides what comes next, so a restart continues an epoch where it was.
"""

import random
import sqlite3
import time

from agent_server.tasks.catalog import Catalog
from client.wire import Mode, SessionRequest


class Leases:
    """`seed` orders the training epochs."""

    def __init__(self, catalog: Catalog, seed: int):
        self._catalog = catalog
        self._seed = seed

    def lease(self, db: sqlite3.Connection, request: SessionRequest) -> str:
        """The row of the request's group, leased now if the group is new. Call inside a write transaction. Raises NotFound
        for a `task_id` that does not exist."""
        held = db.execute(
            "SELECT task_id FROM leases WHERE mode = ? AND group_id = ?", (request.mode, request.group_id)
        ).fetchone()
        if request.task_id:
            self._catalog.get(request.mode, request.task_id)
            if held is None:
                self._insert(db, request, request.task_id, None)
            return request.task_id
        if held:
            return held["task_id"]
        (position,) = db.execute("SELECT COALESCE(MAX(position) + 1, 0) FROM leases WHERE mode = ?", (request.mode,)).fetchone()
        task_id = self.row_at(request.mode, position)
        self._insert(db, request, task_id, position)
        return task_id

    def row_at(self, mode: Mode, position: int) -> str:
        """The row at a place in the endless sequence of epochs: a pure function of rows, seed and place."""
        ids = self._catalog.ids(mode)
        epoch, place = divmod(position, len(ids))
        if mode == "train":
            random.Random(f"{self._seed}:{epoch}").shuffle(ids)
        return ids[place]

    @staticmethod
    def _insert(db: sqlite3.Connection, request: SessionRequest, task_id: str, position: int | None) -> None:
        db.execute(
            "INSERT INTO leases (mode, group_id, task_id, position, created_at) VALUES (?, ?, ?, ?, ?)",
            (request.mode, request.group_id, task_id, position, time.time()),
        )
