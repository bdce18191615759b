"""Client processes under test: their environment, their start, their end."""

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from client.wire import ERROR_FILE
from tests.agent_server.conftest import ROOT, eventually

CLIENT = ROOT / "client" / "agent_client.sh"


class Exit(NamedTuple):
    """A client's exit code and stderr."""

    code: int
    stderr: str


def client_environment(
    folder: Path,
    agent_server_url: str,
    *,
    session_id: str = "s",
    base_url: str = "http://127.0.0.1:9",
    payload: dict | None = None,
    **extra: str,
) -> dict[str, str]:
    """The environment that a trainer gives a client whose files are in `folder`; writes its input JSON."""
    folder.mkdir(exist_ok=True)
    (folder / "input.json").write_text(json.dumps(payload or {"messages": [], "metadata": {}}))
    return {
        "PATH": os.environ["PATH"], "RELAX_INPUT_JSON": str(folder / "input.json"),
        "RELAX_OUTPUT_JSON": str(folder / "output.json"), "RELAX_SESSION_IO_DIR": str(folder),
        "RELAX_BASE_URL": base_url, "RELAX_SESSION_ID": session_id, "RELAX_GROUP_ID": session_id,
        "RELAX_ROLLOUT_MODE": "train", "AGENT_SERVER_URL": agent_server_url,
    } | extra  # fmt: skip


def start_client(folder: Path, agent_server_url: str, *, program: Path = CLIENT, **options) -> subprocess.Popen:
    """Start a client as a trainer does. `options`: those of client_environment."""
    return subprocess.Popen(
        ["/bin/bash", "-lc", f"exec {program}"],
        env=client_environment(folder, agent_server_url, **options),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_exit(process: subprocess.Popen, timeout_s: float = 60.0) -> Exit:
    """The client's exit, once no process of its group is left."""
    _, stderr = process.communicate(timeout=timeout_s)
    eventually(lambda: not group_members(process.pid), what="no process of the client left")
    return Exit(process.returncode, stderr)


def run_client(folder: Path, agent_server_url: str, **options) -> Exit:
    return wait_for_exit(start_client(folder, agent_server_url, **options))


def error_in(folder: Path) -> dict | None:
    """Content of error.json, or None if there is none."""
    path = folder / ERROR_FILE
    return json.loads(path.read_text()) if path.exists() else None


def group_members(group: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getpgid(int(name)) == group:
                members.append(int(name))
        except ProcessLookupError:
            pass
    return members
