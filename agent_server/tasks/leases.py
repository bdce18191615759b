"""Which group works on which row: training in shuffled epochs, evaluation in file order, each run by itself.

Invariant: the samples of a group share one row, and a run leases every row once before it leases any again. A group none
of whose sessions completes gives its place back, and the next new group takes it. The store's tables alone decide what
comes next, so a restart continues an epoch where it was.
"""

import random
import sqlite3
import time
from functools import lru_cache

from agent_server.tasks.catalog import Catalog
from client.wire import Mode, SessionRequest


class Leases:
    """`seed` orders the training epochs."""

    def __init__(self, catalog: Catalog, seed: int):
        self._catalog = catalog
        self._seed = seed
        self._order = lru_cache(maxsize=8)(
            self._shuffled
        )  # tens of thousands of rows are not shuffled again for every group

    def lease(self, db: sqlite3.Connection, request: SessionRequest) -> str:
        """The row of the request's group, leased now if the group is new. Call inside a write transaction. Raises NotFound
        for a `task_id` that does not exist."""
        held = db.execute(
            "SELECT task_id FROM leases WHERE run_id = ? AND mode = ? AND group_id = ?",
            (request.run_id, request.mode, request.group_id),
        ).fetchone()
        if request.task_id:
            self._catalog.check(request.mode, request.task_id)
            if held is None:
                self._insert(db, request, request.task_id, None)
            return request.task_id
        if held:
            return held["task_id"]
        position = _take_position(db, request.run_id, request.mode)
        task_id = self.row_at(request.mode, position)
        self._insert(db, request, task_id, position)
        return task_id

    def row_at(self, mode: Mode, position: int) -> str:
        """The row at a place in the endless sequence of epochs: a pure function of rows, seed and place."""
        epoch, place = divmod(position, self._catalog.size(mode))
        return self._order(mode, epoch if mode == "train" else 0)[place]

    def _shuffled(self, mode: Mode, epoch: int) -> list[str]:
        ids = self._catalog.ids(mode)
        if mode == "train":
            random.Random(f"{self._seed}:{epoch}").shuffle(ids)
        return ids

    @staticmethod
    def _insert(db: sqlite3.Connection, request: SessionRequest, task_id: str, position: int | None) -> None:
        db.execute(
            "INSERT INTO leases (run_id, mode, group_id, task_id, position, created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (request.run_id, request.mode, request.group_id, task_id, position, time.time()),
        )


def _take_position(db: sqlite3.Connection, run_id: str, mode: Mode) -> int:
    """The first place that was given back, else the next new one."""
    returned = db.execute(
        "SELECT MIN(position) FROM returned_rows WHERE run_id = ? AND mode = ?", (run_id, mode)
    ).fetchone()[0]
    if returned is not None:
        db.execute("DELETE FROM returned_rows WHERE run_id = ? AND mode = ? AND position = ?", (run_id, mode, returned))
        return returned
    return db.execute(
        "INSERT INTO sequences (run_id, mode, next_position) VALUES (?, ?, 1)"
        " ON CONFLICT (run_id, mode) DO UPDATE SET next_position = next_position + 1 RETURNING next_position - 1",
        (run_id, mode),
    ).fetchone()[0]


def return_idle(db: sqlite3.Connection, idle_s: float) -> int:
    """Give back the places of groups none of whose sessions completed, and that have had none alive for `idle_s` seconds.
    Call inside a write transaction; returns how many."""
    since = time.time() - idle_s
    idle = db.execute(
        "SELECT run_id, mode, group_id, position FROM leases AS l WHERE NOT completed AND created_at < ? AND NOT EXISTS ("
        " SELECT 1 FROM sessions AS s WHERE s.run_id = l.run_id AND s.mode = l.mode AND s.group_id = l.group_id"
        " AND COALESCE(s.ended_at, ?) >= ?)",
        (since, since, since),
    ).fetchall()
    for row in idle:
        db.execute(
            "DELETE FROM leases WHERE run_id = ? AND mode = ? AND group_id = ?",
            (row["run_id"], row["mode"], row["group_id"]),
        )
        if row["position"] is not None:
            db.execute(
                "INSERT OR IGNORE INTO returned_rows VALUES (?, ?, ?)", (row["run_id"], row["mode"], row["position"])
            )
    return len(idle)


def forget_old(db: sqlite3.Connection, age_s: float) -> None:
    """Drop leases of completed groups, `age_s` seconds old, that have no session on record. Call inside a write transaction."""
    db.execute(
        "DELETE FROM leases AS l WHERE completed AND created_at < ? AND NOT EXISTS ("
        " SELECT 1 FROM sessions AS s WHERE s.run_id = l.run_id AND s.mode = l.mode AND s.group_id = l.group_id)",
        (time.time() - age_s,),
    )
