"""Admission of queued sessions: first in, first out, with one limit per mode.

Invariant: pure; no process, no store, no clock.
"""

from collections.abc import Mapping, Sequence


def free_slots(running: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Free slots of each mode; 0 where a limit was lowered below the number of running sessions."""
    return {mode: max(0, limit - running.get(mode, 0)) for mode, limit in limits.items()}


def select_admissions(queued: Mapping[str, Sequence[str]], free: Mapping[str, int]) -> list[str]:
    """Sessions to start now. `queued`: each mode's session ids in order of arrival. `free`: its free slots."""
    return [session for mode, slots in free.items() for session in queued.get(mode, ())[:slots]]
