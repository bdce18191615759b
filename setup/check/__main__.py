"""The checks of setup/check.sh that need the server's own code: settings, memory, processes, agent, rows, images,
sandbox, loop devices, port, clock.

    python -m setup.check [--failed N] [--session] [--gateway URL]     started by check.sh, which sets the defaults

Invariant: a line reports the result of the server's own check. Nothing is changed: every started process is ended,
every file is temporary. A check that cannot run is a warning; its precondition FAILs on a line of its own.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from agent_server.sandboxes.processes import become_subreaper
from setup.check.capacity import check_memory, check_processes
from setup.check.clock import check_clock, check_skew
from setup.check.node import Node
from setup.check.result import FAIL, OK, WARN, CheckResult
from setup.check.sandbox import check_loop_devices, check_sandbox
from setup.check.server import check_agent, check_listening_port, check_rows_and_images, check_settings
from setup.check.session import SessionFault, run_session

ROOT = Path(__file__).resolve().parents[2]


def run_checks(node: Node, gateway: str, session: bool) -> Iterator[CheckResult]:
    """Run the checks one by one; `session`: also one scripted session."""
    yield check_settings(node)
    if settings := node.settings:
        yield check_memory(settings)
        yield check_processes(settings)
        yield check_agent(settings)
        yield from check_rows_and_images(node, settings)
        yield check_sandbox(node, settings)
        yield check_loop_devices(node, settings)
        yield check_listening_port(settings)
    else:
        for name in ("memory", "processes", "agent", "rows", "images", "sandbox", "loops", "port"):
            yield CheckResult(WARN, name, "not tried: the settings are wrong", "correct them, then run this again")
    yield check_clock()
    for name, url in (("clock_agent", os.environ.get("AGENT_SERVER_URL", "")), ("clock_gw", gateway)):
        if url:
            yield check_skew(name, url)
    if session:
        try:
            yield CheckResult(OK, "session", run_session(node.demo))
        except SessionFault as fault:
            yield CheckResult(FAIL, "session", str(fault), fault.remedy)


def main() -> int:
    """Exit codes: 0 no FAIL, 1 at least one, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m setup.check", description="The part of setup/check.sh that needs the server's code."
    )
    parser.add_argument("--failed", type=int, default=0, help="1: a check of check.sh has failed")
    parser.add_argument("--session", action="store_true", help="also run one scripted session of the demo rows")
    parser.add_argument("--gateway", default="", help="URL of the trainer's gateway, to compare clocks")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clean-up runs
    become_subreaper()  # so that every process we start stays below us
    node = Node(dict(os.environ), Path(os.environ.get("SWE_RL_CACHE") or ROOT / ".cache") / "demo")
    failed = bool(arguments.failed)
    try:
        for line in run_checks(node, arguments.gateway, arguments.session):
            print(line, flush=True)
            failed |= line.status == FAIL
    except KeyboardInterrupt:
        return 130
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
