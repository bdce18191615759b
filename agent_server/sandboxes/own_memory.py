"""Memory of this process: its bound, which sandboxes do not inherit, and its peak.

Invariant: what the process shared with its parent when it was forked counts neither towards the bound nor the peak.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

KIB = 1024


def limit_growth(n_bytes: int) -> None:
    """Raise MemoryError from here on where this process has allocated `n_bytes` more than now."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = read_status("VmData") + n_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


@contextmanager
def unlimited_children() -> Iterator[None]:
    """Processes that are started in the block do not inherit the bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def read_status(name: str) -> int:
    """Bytes of a field of /proc/self/status: VmData (allocated), VmRSS (resident), VmHWM (the most that was resident,
    since the fork)."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1]) * KIB for line in status if line.startswith(f"{name}:".encode()))
