"""Checks whether memory and processes of the node suffice for the sessions that the settings allow at once."""

import resource
from pathlib import Path

from agent_server.config import Settings
from setup.check.result import FAIL, OK, WARN, CheckResult

SERVER_MIB = 512  # the server itself
SERVER_THREADS = 1200  # as gunicorn.conf.py allows
LEAST_PROCESSES = 8  # of a sandbox that does anything
CGROUP = Path("/sys/fs/cgroup")


def check_memory(settings: Settings) -> CheckResult:
    """Available memory against all sandboxes and workers at their limits."""
    sessions, each = _sessions(settings), settings.sandbox_memory_mib + settings.worker_memory_mib
    available, swap = _meminfo_mib("MemAvailable"), _meminfo_mib("SwapFree")
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and used is not None:
        available = min(available, (limit - used) >> 20)
    found = f"{available} MiB available, {swap} MiB swap free"
    if available < each + SERVER_MIB:
        return CheckResult(
            FAIL,
            "memory",
            f"{found}: too little for the server and one session at its limits ({each} MiB)",
            "add memory, or lower AGENT_SERVER_SANDBOX_MEMORY_MIB (and ..._DISK_MIB below it)",
        )
    if available < (needed := sessions * each):
        return CheckResult(
            WARN,
            "memory",
            f"{found}; {sessions} sessions at their limits of {each} MiB (sandbox and worker) use {needed}",
            "nothing, if sessions use less; otherwise lower AGENT_SERVER_TRAIN_CONCURRENCY, ..._EVAL_CONCURRENCY"
            " or ..._SANDBOX_MEMORY_MIB",
        )
    return CheckResult(OK, "memory", found)


def check_processes(settings: Settings) -> CheckResult:
    """The lowest limit of processes and threads against all sandboxes at their limit."""
    sessions = _sessions(settings)
    needed = SERVER_THREADS + sessions * settings.sandbox_processes
    least = SERVER_THREADS + sessions * LEAST_PROCESSES
    limit = _process_limit()
    remedy = (
        "raise the lowest of ulimit -u, kernel.pid_max, kernel.threads-max and the cgroup's pids.max"
        f" to {needed}, or lower AGENT_SERVER_SANDBOX_PROCESSES"
    )
    found = f"{limit} processes and threads"
    if limit < least:
        needs = f"the server's {SERVER_THREADS} threads and {LEAST_PROCESSES} processes in each of {sessions} sandboxes"
        return CheckResult(FAIL, "processes", f"{found}; {needs} need {least}", remedy)
    if limit < needed:
        return CheckResult(WARN, "processes", f"{found}; all sandboxes at their limit use {needed}", remedy)
    return CheckResult(OK, "processes", found)


def _sessions(settings: Settings) -> int:
    return settings.train_concurrency + settings.eval_concurrency


def _process_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    kernel = Path("/proc/sys/kernel")
    files = (kernel / "pid_max", kernel / "threads-max", CGROUP / "pids.max")
    limits = [limit for path in files if (limit := _number(path)) is not None]
    return min(limits if soft == resource.RLIM_INFINITY else [soft, *limits])


def _meminfo_mib(name: str) -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines[name].split()[0]) >> 10


def _number(path: Path) -> int | None:
    """The number in a file of the kernel; None where there is no file, or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
