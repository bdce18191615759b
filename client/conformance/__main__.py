"""`python -m client.conformance URL [--token T]`: checks an agent server against the contract, one line per rule.

Creates about thirty sessions, one or two at a time, serves their model itself, and cancels those that are left.
Invariant: needs only the server's URL.

Each rule has a grade (client/conformance/grades.py). Where a rule of grade `ours` does not hold, the server lacks it.
Exit codes: 0 no rule fails, 1 some fail, 75 the server cannot be reached.
A rule that could not be tried (for want of a token, for example) is inconclusive and does not fail.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import requests

from client.conformance.checks import CHECKS
from client.conformance.grades import Grade
from client.conformance.model import serving_model
from client.conformance.server import CheckFailed, Inconclusive, Server
from client.wire import EXIT_UNREACHABLE

HOLDS, FAILS, LACKS, INCONCLUSIVE = "holds", "FAILS", "lacks", "inconclusive"
MODEL_HOST_HELP = (
    "address of this machine that the agent server can reach; the model listens there (default: 127.0.0.1)"
)


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    check: str
    grade: Grade
    verdict: str
    rule: str
    detail: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict:14}{self.grade:10}{self.check:34}{self.rule}"
        return line + (f"\n{'':58}{self.detail}" if self.detail else "")


def run(server: Server) -> Iterator[Result]:
    """Run every check in turn. A lost connection counts as failed."""
    for check, grade in CHECKS.items():
        verdict, detail = HOLDS, ""
        broken = LACKS if grade is Grade.OURS else FAILS
        try:
            check(server)
        except Inconclusive as reason:
            verdict, detail = INCONCLUSIVE, str(reason)
        except CheckFailed as failure:
            verdict, detail = broken, str(failure)
        except requests.RequestException as lost:
            verdict, detail = broken, f"no response: {type(lost).__name__}: {lost}"
        finally:
            server.clean_up()
        yield Result(check.__name__, grade, verdict, check.__doc__ or "", detail)


def main(argv: list[str]) -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m client.conformance", description="Checks an agent server against the contract."
    )
    parser.add_argument("url", help="where the agent server listens, such as http://127.0.0.1:8600")
    parser.add_argument(
        "--token", default="", help="its AGENT_SERVER_TOKEN; without it the checks of the token are left out"
    )
    parser.add_argument("--model-host", default="127.0.0.1", help=MODEL_HOST_HELP)
    parser.add_argument(
        "--patience-s",
        type=float,
        default=120.0,
        help="how long a session may take to call the model, and to end (default: 120)",
    )
    options = parser.parse_args(argv)
    with serving_model(options.model_host) as model:
        server = Server(options.url, model, token=options.token, session_timeout_s=options.patience_s)
        try:
            server.call("GET", "/sessions/conformance-none", timeout_s=10.0)
        except requests.RequestException as lost:
            print(f"conformance: {options.url} cannot be reached: {lost}; is the agent server up?", file=sys.stderr)
            return EXIT_UNREACHABLE
        results = []
        for result in run(server):
            print(result, flush=True)
            results.append(result)
    count = Counter(result.verdict for result in results)
    print(f"\n{count[HOLDS]} hold, {count[FAILS]} fail, {count[LACKS]} lacking, {count[INCONCLUSIVE]} inconclusive")
    return 1 if count[FAILS] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
