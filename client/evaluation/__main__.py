"""`python -m client.evaluation --server URL --base-url ENDPOINT --model NAME --out DIR`: K samples a task of a split, without a trainer.

Runs them through an agent server against any OpenAI-compatible endpoint, resumes where it was stopped, and leaves rates, SWE-bench
predictions and trajectories. Secrets come from the environment: AGENT_SERVER_TOKEN, and the variable that --api-key-env names.
Invariant: bad input is refused before any session begins. Exit codes: 0 every sample has a result, 1 some have none, 75 the agent server
cannot be reached, 130 interrupted.
"""

import argparse
import difflib
import json
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import requests
from pydantic import ValidationError

from client.api import AgentServerClient
from client.errors import ConfigError, ModelError, NotFound, ServerUnreachable, StackError
from client.evaluation import relay as batch_relay
from client.evaluation import report as batch_report
from client.evaluation.endpoint import Endpoint
from client.evaluation.results import Book, Settings
from client.evaluation.sessions import Sessions
from client.wire import EXIT_UNREACHABLE

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 1, 130
PROBE_PATIENCE_S = 10.0
OURS = {"model", "messages", "tools", "stream", "stream_options", "n"}  # the agent's, the relay's, or --model


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m client.evaluation",
        description="Runs a split's tasks through an agent server against a model's API.",
    )
    add = parser.add_argument
    add(
        "--server",
        required=True,
        help="the agent server, such as http://127.0.0.1:8600; its token comes from AGENT_SERVER_TOKEN",
    )
    add(
        "--base-url",
        required=True,
        help="the model's API as OpenAI's clients take it, such as https://api.openai.com/v1",
    )
    add("--model", required=True, help="the model's name there")
    add(
        "--out",
        required=True,
        type=Path,
        help="folder of the results; the same command with the same folder goes on where it was stopped",
    )
    add(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="environment variable that holds the API's key; without it none is sent",
    )
    add("--split", choices=("train", "eval"), default="eval", help="which of the server's rows (default: eval)")
    add("--tasks", nargs="+", default=[], metavar="ID", help="only these rows of the split")
    add("--samples", type=int, default=1, metavar="K", help="samples a task (default: 1)")
    add("--concurrency", type=int, default=8, help="sessions at once (default: 8); the server has limits of its own")
    add("--temperature", type=float)
    add("--max-tokens", type=int, help="of one answer")
    add("--extra", default="{}", metavar="JSON", help="""more fields of every request, such as '{"top_p": 0.95}'""")
    add("--only-resolved", action="store_true", help="trajectories.jsonl keeps only those of resolved samples")
    add(
        "--relay-host",
        default="127.0.0.1",
        help="address of this machine that the agent server can reach (default: 127.0.0.1)",
    )
    add("--relay-port", type=int, default=0, help="default: any free one")
    add("--outage-s", type=float, default=120.0, help="how long the agent server may stay silent (default: 120)")
    add("--call-timeout-s", type=float, default=600.0, help="one call to the API (default: 600)")
    add(
        "--patience-s",
        type=float,
        default=300.0,
        help="how long a call is tried again while the API fails (default: 300), rate limits apart",
    )
    return parser.parse_args(given)


def main(given: list[str], environment: Mapping[str, str]) -> int:
    """Returns the exit code."""
    options = arguments(given)
    try:
        return run(options, environment)
    except ServerUnreachable as unreachable:
        return _say(str(unreachable), EXIT_UNREACHABLE)
    except StackError as failure:
        return _say(str(failure), INCOMPLETE)
    except requests.RequestException as unusable:
        return _say(f"--server {options.server}: {unusable}", INCOMPLETE)
    except KeyboardInterrupt:
        return _say("interrupted; its sessions are cancelled, the same command goes on from here", INTERRUPTED)


def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """The batch from its checks to its table. Raises StackError, KeyboardInterrupt."""
    if options.concurrency < 1:
        raise ConfigError(f"--concurrency {options.concurrency} must be at least 1")
    server = partial(
        AgentServerClient, options.server, token=environment.get("AGENT_SERVER_TOKEN", ""), outage_s=options.outage_s
    )
    api_key = _api_key(options.api_key_env, environment)
    endpoint_of = partial(
        Endpoint, options.base_url, options.model, api_key=api_key, call_timeout_s=options.call_timeout_s
    )
    settings = _settings(options, server(outage_s=5.0))
    probe(endpoint_of(sampling=settings.sampling, patience_s=PROBE_PATIENCE_S))
    endpoint = endpoint_of(sampling=settings.sampling, patience_s=options.patience_s)
    with (
        Book(options.out, settings) as book,
        batch_relay.serving(options.relay_host, options.relay_port, endpoint) as relay,
    ):
        progress = batch_report.Progress(sys.stderr, book.results().values(), len(settings.tasks) * settings.samples)
        sessions = Sessions(server, relay, book, concurrency=options.concurrency, after=progress.after)
        sessions.cancel_left_open()
        _interrupt_once()
        try:
            sessions.run(book.missing())
            book.close_sessions()
        finally:
            progress.close()
            summary = batch_report.write(book)
            print(batch_report.table(summary), flush=True)
    return COMPLETE if summary["completed"] == summary["samples"] else INCOMPLETE


def probe(endpoint: Endpoint) -> None:
    """One small completion, with the run's own sampling: a wrong address, key, model or field shows before any session. Raises ConfigError."""
    try:
        verdict = endpoint.complete(
            {"messages": [{"role": "user", "content": "Answer with OK."}]}, lambda: False, lambda seconds, fault: None
        )
    except ModelError as failure:
        raise ConfigError(f"the probe of {endpoint.url} failed: {failure}") from failure
    if verdict.status != 200:
        raise ConfigError(
            f"the probe of {endpoint.url} failed: {verdict.answer['error']['message']}; lower --max-tokens"
        )


def _settings(options: argparse.Namespace, server: AgentServerClient) -> Settings:
    try:
        extra = json.loads(options.extra)
    except ValueError as wrong:
        raise ConfigError(f"--extra {options.extra} must be JSON: {wrong}") from None
    if not isinstance(extra, dict) or extra.keys() & OURS:
        raise ConfigError(f"--extra {options.extra} must be a JSON object without {', '.join(sorted(OURS))}")
    fields = {
        name: getattr(options, name)
        for name in ("model", "base_url", "split", "samples", "temperature", "max_tokens", "only_resolved")
    }
    try:
        settings = Settings(**fields, extra=extra, tasks=())
    except ValidationError as wrong:
        first = wrong.errors()[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{name.replace('_', '-')} {fields.get(name)}: {first['msg']}") from None
    return settings.model_copy(update={"tasks": _tasks(options, server)})


def _tasks(options: argparse.Namespace, server: AgentServerClient) -> tuple[str, ...]:
    """Row ids in the server's order. Raises NotFound, ServerUnreachable."""
    there = server.tasks().get(options.split, [])
    for task in options.tasks:
        if task not in there:
            near = difflib.get_close_matches(task, there, n=1)
            hint = f"; did you mean {near[0]}?" if near else f", which has {len(there)}"
            raise NotFound(f"--tasks {task}: the server has no such row in {options.split}{hint}")
    return tuple(task for task in there if task in options.tasks or not options.tasks)


def _api_key(name: str, environment: Mapping[str, str]) -> str:
    if name and not environment.get(name):
        raise ConfigError(f"--api-key-env {name}: that variable is not set; export it with the key of the API")
    return environment[name] if name else ""


def _interrupt_once() -> None:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; what it begins, cancelling the sessions, is not interrupted again."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def _say(message: str, exit_code: int) -> int:
    print(f"batch: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
