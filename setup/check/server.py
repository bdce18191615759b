"""Checks of what the agent server loads at its start: settings, agent, rows, images, and its port."""

from collections.abc import Iterator

import requests

from agent_server.__main__ import check_port
from agent_server.agents.registry import load_agent
from agent_server.config import Settings
from agent_server.tasks.catalog import MODES
from client.errors import ConfigError, StackError
from client.http_session import http_session
from setup.check.node import Node
from setup.check.result import FAIL, OK, WARN, CheckResult


def check_settings(node: Node) -> CheckResult:
    if not (settings := node.settings):
        remedy = "correct the variable; `.venv/bin/python -m agent_server --help` lists all"
        return CheckResult(FAIL, "settings", str(node.errors["settings"]), remedy)
    concurrency = f"train {settings.train_concurrency}, eval {settings.eval_concurrency} at once"
    return CheckResult(OK, "settings", f"{concurrency}, {settings.address}")


def check_agent(settings: Settings) -> CheckResult:
    try:
        load_agent(settings)
    except StackError as error:
        return CheckResult(FAIL, "agent", str(error), "correct AGENT_SERVER_AGENT or AGENT_SERVER_AGENT_CONFIG")
    return CheckResult(OK, "agent", settings.agent)


def check_rows_and_images(node: Node, settings: Settings) -> Iterator[CheckResult]:
    if node.is_unbuilt_demo:
        remedy = "bash scripts/serve_agents.sh builds the demo at its start; or set R2E_DATA_PATH and R2E_SIF_DIR"
        yield CheckResult(WARN, "rows", f"R2E_DATA_PATH is not set, and the demo is not built in {node.demo}", remedy)
        yield CheckResult(WARN, "images", "not tried: there are no rows", remedy)
        return
    if node.catalog:
        counts = ", ".join(f"{len(node.catalog.ids(mode))} {mode}" for mode in MODES)
        found = f"{counts} in {settings.data_path}"
        if left_out := node.catalog.unusable:
            found += f"; {len(left_out)} rows are left out, the first: {left_out[0]}"
            remedy = f"nothing if that is meant; the server's start lists all in {settings.unusable_rows_file}"
            yield CheckResult(WARN, "rows", found, remedy)
        else:
            yield CheckResult(OK, "rows", found)
    else:
        remedy = "set R2E_DATA_PATH to readable rows in the form that docs/datasets.md shows (parquet or JSONL)"
        yield CheckResult(FAIL, "rows", str(node.errors["rows"]), remedy)
    if node.images is not None:
        yield CheckResult(OK, "images", f"all images of the rows ({len(node.images)}) are in {settings.sif_dir}")
    elif error := node.errors.get("images"):
        remedy = (
            "fetch or build them into R2E_SIF_DIR; each file is the image's name with / and : replaced by __, plus .sif"
        )
        yield CheckResult(FAIL, "images", str(error), remedy)
    else:
        yield CheckResult(
            WARN, "images", "not tried: the rows that name them cannot be read", "correct the rows, then run this again"
        )


def check_listening_port(settings: Settings) -> CheckResult:
    try:
        check_port(settings)
    except (ConfigError, OSError) as error:
        if _is_agent_server(settings.address):
            return CheckResult(OK, "port", f"an agent server listens on {settings.address} already")
        remedy = (
            "stop the listener that `ss -ltnp` shows, or set AGENT_SERVER_PORT (and AGENT_SERVER_HOST to an address of"
            " this machine)"
        )
        return CheckResult(FAIL, "port", str(error), remedy)
    return CheckResult(OK, "port", f"{settings.address} is free")


def _is_agent_server(address: str) -> bool:
    try:
        with http_session(f"http://{address}") as http:
            return "limits" in http.get(f"http://{address}/healthz", timeout=5).json()
    except (requests.RequestException, ValueError, TypeError):
        return False
