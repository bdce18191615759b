"""`python -m client.evaluation --server URL --base-url ENDPOINT --model NAME --out DIR`: evaluates a model on a split.

Runs K samples per task through an agent server and any OpenAI-compatible endpoint, without a trainer. Resumes a stopped
run; writes rates, SWE-bench predictions and trajectories. Secrets come from the environment: AGENT_SERVER_TOKEN and the
variable that --api-key-env names.
Invariant: bad input is refused before any session begins. Exit codes: 0 every sample has a result, 1 some have none,
75 the agent server cannot be reached, 130 interrupted.
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

from client.api import OUTAGE_S, AgentServerClient
from client.errors import ConfigError, ModelError, ModelUnreachable, NotFound, ServerUnreachable, StackError
from client.evaluation import report
from client.evaluation.endpoint import Endpoint
from client.evaluation.relay import serving_relay
from client.evaluation.results import EvaluationSettings, ResultStore
from client.evaluation.runner import SampleRunner
from client.proxies import proxy_for, unused_proxies
from client.signals import on_first_signal
from client.wire import EXIT_UNREACHABLE

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 1, 130
PROBE_RETRY_TIMEOUT_S = 10.0
RESERVED_FIELDS = {"model", "messages", "tools", "stream", "stream_options", "n"}  # the agent's, the relay's, --model


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m client.evaluation",
        description="Evaluates a model's API on a split's tasks, through an agent server.",
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
        help="folder of the results; the same command with the same folder resumes a stopped run",
    )
    add(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="environment variable that holds the API's key; without it none is sent",
    )
    add("--split", choices=("train", "eval"), default="eval", help="the split of the server's rows (default: eval)")
    add("--tasks", nargs="+", default=[], metavar="ID", help="only these rows of the split")
    add("--samples", type=int, default=1, metavar="K", help="samples per task (default: 1)")
    add("--concurrency", type=int, default=8, help="sessions at once (default: 8); the server has its own limits")
    add("--temperature", type=float)
    add("--max-tokens", type=int, help="of one answer")
    add("--extra", default="{}", metavar="JSON", help="""more fields of each request, such as '{"top_p": 0.95}'""")
    add("--only-resolved", action="store_true", help="write only resolved samples to trajectories.jsonl")
    add(
        "--relay-host",
        default="127.0.0.1",
        help="address of this machine that the agent server can reach (default: 127.0.0.1)",
    )
    add("--relay-port", type=int, default=0, help="default: any free one")
    add("--outage-s", type=float, default=OUTAGE_S, help=f"longest outage of the agent server (default: {OUTAGE_S:g})")
    add("--call-timeout-s", type=float, default=600.0, help="limit of one call to the API (default: 600)")
    add(
        "--patience-s",
        type=float,
        default=300.0,
        help="how long a call is retried while the API fails (default: 300); rate limits do not count",
    )
    return parser.parse_args(argv)


def main(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run the evaluation; returns the exit code."""
    options = parse_arguments(argv)
    try:
        return run(options, environment)
    except ServerUnreachable as unreachable:
        return _print_error(str(unreachable), EXIT_UNREACHABLE)
    except StackError as failure:
        return _print_error(str(failure), INCOMPLETE)
    except requests.RequestException as error:
        return _print_error(f"--server {options.server}: {error}", INCOMPLETE)
    except KeyboardInterrupt:
        return _print_error("interrupted; its sessions are cancelled, the same command resumes it", INTERRUPTED)


def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """The evaluation from its checks to its table. Raises StackError, KeyboardInterrupt."""
    if options.concurrency < 1:
        raise ConfigError(f"--concurrency {options.concurrency} must be at least 1")
    server = partial(
        AgentServerClient, options.server, token=environment.get("AGENT_SERVER_TOKEN", ""), outage_s=options.outage_s
    )
    api_key = _api_key(options.api_key_env, environment)
    make_endpoint = partial(
        Endpoint,
        options.base_url,
        options.model,
        api_key=api_key,
        call_timeout_s=options.call_timeout_s,
        proxy=_proxy(options.base_url, environment),
    )
    settings = _settings(options, server(outage_s=5.0))
    probe(make_endpoint(sampling=settings.sampling, retry_timeout_s=PROBE_RETRY_TIMEOUT_S), environment)
    endpoint = make_endpoint(sampling=settings.sampling, retry_timeout_s=options.patience_s)
    with (
        ResultStore(options.out, settings) as store,
        serving_relay(options.relay_host, options.relay_port, endpoint) as relay,
    ):
        progress = report.Progress(sys.stderr, store.results().values(), len(settings.tasks) * settings.samples)
        runner = SampleRunner(server, relay, store, concurrency=options.concurrency, on_record=progress.update)
        runner.cancel_open_sessions()
        on_first_signal((signal.SIGINT, signal.SIGTERM), _interrupt)
        try:
            runner.run(store.pending_samples())
            store.clear_open_sessions()
        finally:
            progress.close()
            summary = report.write(store)
            print(report.table(summary), flush=True)
    return COMPLETE if summary["completed"] == summary["samples"] else INCOMPLETE


def probe(endpoint: Endpoint, environment: Mapping[str, str]) -> None:
    """Send a small completion with the run's sampling. Raises ConfigError for a wrong address, key, model or field."""
    request = {"messages": [{"role": "user", "content": "Answer with OK."}]}
    try:
        decision = endpoint.complete(request, lambda: False, lambda seconds, fault: None)
    except ModelError as failure:
        hint = unused_proxies(environment) if isinstance(failure, ModelUnreachable) else ""
        raise ConfigError(f"the probe of {endpoint.url} failed: {failure}{hint}") from failure
    if decision.status != 200:
        message = (decision.answer or {})["error"]["message"]
        raise ConfigError(f"the probe of {endpoint.url} failed: {message}; lower --max-tokens")


def _settings(options: argparse.Namespace, server: AgentServerClient) -> EvaluationSettings:
    try:
        extra = json.loads(options.extra)
    except ValueError as error:
        raise ConfigError(f"--extra {options.extra} must be JSON: {error}") from None
    if not isinstance(extra, dict) or extra.keys() & RESERVED_FIELDS:
        raise ConfigError(f"--extra {options.extra} must be a JSON object without {', '.join(sorted(RESERVED_FIELDS))}")
    fields = {
        name: getattr(options, name)
        for name in ("model", "base_url", "split", "samples", "temperature", "max_tokens", "only_resolved")
    }
    try:
        settings = EvaluationSettings(**fields, extra=extra, tasks=())
    except ValidationError as invalid:
        first = invalid.errors()[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{name.replace('_', '-')} {fields.get(name)}: {first['msg']}") from None
    return settings.model_copy(update={"tasks": _tasks(options, server)})


def _tasks(options: argparse.Namespace, server: AgentServerClient) -> tuple[str, ...]:
    """Row ids in the server's order. Raises NotFound, ServerUnreachable."""
    rows = server.tasks().get(options.split, [])
    for task in options.tasks:
        if task not in rows:
            near = difflib.get_close_matches(task, rows, n=1)
            hint = f"; did you mean {near[0]}?" if near else f", which has {len(rows)}"
            raise NotFound(f"--tasks {task}: the server has no such row in {options.split}{hint}")
    return tuple(task for task in rows if task in options.tasks or not options.tasks)


def _proxy(url: str, environment: Mapping[str, str]) -> str:
    try:
        return proxy_for(url, environment)
    except ValueError as wrong:
        raise ConfigError(f"--base-url {url}: {wrong}") from None


def _api_key(name: str, environment: Mapping[str, str]) -> str:
    if name and not environment.get(name):
        raise ConfigError(f"--api-key-env {name}: that variable is not set; export it with the key of the API")
    return environment[name] if name else ""


def _interrupt(_: signal.Signals) -> None:
    raise KeyboardInterrupt


def _print_error(message: str, exit_code: int) -> int:
    print(f"evaluation: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
