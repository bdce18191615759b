"""`python -m client.conformance URL [--token T]`: does the agent server there keep the contract? A line a promise.

It makes about thirty sessions, one or two at a time, plays their model itself, and cancels what is left of them.
Invariant: knows nothing of the server but its URL. Exit codes: 0 every promise holds, 1 some do not, 75 the server cannot be reached.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import requests

from client.conformance import model as conformance_model
from client.conformance.checks import CHECKS
from client.conformance.server import Fails, Server, Untested
from client.wire import EXIT_UNREACHABLE

HOLDS, FAILS, UNTESTED = "holds", "FAILS", "untested"
HELP = "address of this machine that the agent server can reach; the model listens there (default: 127.0.0.1)"


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    check: str
    verdict: str
    promise: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:9}{self.check:23}{self.promise}" + (f"\n{'':32}{self.detail}" if self.detail else "")


def run(server: Server) -> Iterator[Line]:
    """Every check in turn. What a check did not expect at all counts as failed."""
    for check in CHECKS:
        verdict, detail = HOLDS, ""
        try:
            check(server)
        except Untested as reason:
            verdict, detail = UNTESTED, str(reason)
        except Fails as seen:
            verdict, detail = FAILS, str(seen)
        except requests.RequestException as lost:
            verdict, detail = FAILS, f"no answer: {type(lost).__name__}: {lost}"
        finally:
            server.clean_up()
        yield Line(check.__name__, verdict, check.__doc__ or "", detail)


def main(arguments: list[str]) -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m client.conformance", description="Holds an agent server against the contract."
    )
    parser.add_argument("url", help="where the agent server listens, such as http://127.0.0.1:8600")
    parser.add_argument(
        "--token", default="", help="its AGENT_SERVER_TOKEN; without it the checks of the token are left out"
    )
    parser.add_argument("--model-host", default="127.0.0.1", help=HELP)
    parser.add_argument(
        "--patience-s",
        type=float,
        default=120.0,
        help="how long a session may take to call the model, and to end (default: 120)",
    )
    given = parser.parse_args(arguments)
    with conformance_model.serving(given.model_host) as model:
        server = Server(given.url, model, token=given.token, patience_s=given.patience_s)
        try:
            server.call("GET", "/sessions/conformance-none", timeout_s=10.0)
        except requests.RequestException as lost:
            print(f"conformance: {given.url} cannot be reached: {lost}; is the agent server up?", file=sys.stderr)
            return EXIT_UNREACHABLE
        lines = []
        for line in run(server):
            print(line, flush=True)
            lines.append(line)
    count = {verdict: sum(line.verdict == verdict for line in lines) for verdict in (HOLDS, FAILS, UNTESTED)}
    print(f"\n{count[HOLDS]} hold, {count[FAILS]} fail, {count[UNTESTED]} untested")
    return 1 if count[FAILS] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
