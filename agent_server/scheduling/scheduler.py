"""Which queued sessions may start now: first in, first out, one semaphore a mode.

Invariant: a decision only. Pure: it touches no process, no store and no clock.
"""

from collections.abc import Mapping, Sequence


def free_slots(running: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Slots a mode has left, never below 0 (a limit may be lowered under what runs)."""
    return {mode: max(0, limit - running.get(mode, 0)) for mode, limit in limits.items()}


def admissions(queued: Mapping[str, Sequence[str]], running: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Sessions to start now. `queued` holds each mode's session ids in order of arrival; modes do not wait for each other."""
    return [session for mode, slots in free_slots(running, limits).items() for session in queued.get(mode, ())[:slots]]
