"""Checks of what the agent server loads at its start: settings, agent, rows, images, and its port."""

from collections.abc import Iterator

import requests

from agent_server.__main__ import check_port
from agent_server.agents.registry import load_agent
from agent_server.config import Settings
from agent_server.tasks.catalog import MODES
from client.errors import ConfigError, StackError
from setup.check.line import FAIL, OK, WARN, Line
from setup.check.node import Node


def check_settings(node: Node) -> Line:
    if not (settings := node.settings):
        remedy = "correct the variable; `.venv/bin/python -m agent_server --help` lists all"
        return Line(FAIL, "settings", str(node.errors["settings"]), remedy)
    concurrency = f"train {settings.train_concurrency}, eval {settings.eval_concurrency} at once"
    return Line(OK, "settings", f"{concurrency}, {settings.address}")


def check_agent(settings: Settings) -> Line:
    try:
        load_agent(settings)
    except StackError as error:
        return Line(FAIL, "agent", str(error), "correct AGENT_SERVER_AGENT or AGENT_SERVER_AGENT_CONFIG")
    return Line(OK, "agent", settings.agent)


def check_rows_and_images(node: Node, settings: Settings) -> Iterator[Line]:
    if node.is_unbuilt_demo:
        remedy = "bash scripts/serve_agents.sh builds the demo at its start; or set R2E_DATA_PATH and R2E_SIF_DIR"
        yield Line(WARN, "rows", f"R2E_DATA_PATH is not set, and the demo is not built in {node.demo}", remedy)
        yield Line(WARN, "images", "not tried: there are no rows", remedy)
        return
    if node.catalog:
        counts = ", ".join(f"{len(node.catalog.ids(mode))} {mode}" for mode in MODES)
        yield Line(OK, "rows", f"{counts} in {settings.data_path}")
    else:
        remedy = "set R2E_DATA_PATH to readable rows in the form that docs/datasets.md shows (parquet or JSONL)"
        yield Line(FAIL, "rows", str(node.errors["rows"]), remedy)
    if node.images is not None:
        yield Line(OK, "images", f"all images of the rows ({len(node.images)}) are in {settings.sif_dir}")
    elif error := node.errors.get("images"):
        remedy = (
            "fetch or build them into R2E_SIF_DIR; each file is the image's name with / and : replaced by __, plus .sif"
        )
        yield Line(FAIL, "images", str(error), remedy)
    else:
        yield Line(
            WARN, "images", "not tried: the rows that name them cannot be read", "correct the rows, then run this again"
        )


def check_listening_port(settings: Settings) -> Line:
    try:
        check_port(settings)
    except (ConfigError, OSError) as error:
        if _is_agent_server(settings.address):
            return Line(OK, "port", f"an agent server listens on {settings.address} already")
        remedy = (
            "stop the listener that `ss -ltnp` shows, or set AGENT_SERVER_PORT (and AGENT_SERVER_HOST to an address of"
            " this machine)"
        )
        return Line(FAIL, "port", str(error), remedy)
    return Line(OK, "port", f"{settings.address} is free")


def _is_agent_server(address: str) -> bool:
    try:
        return "limits" in requests.get(f"http://{address}/healthz", timeout=5).json()
    except (requests.RequestException, ValueError, TypeError):
        return False
