"""A client process like Relax's: one request without a retry, polls without `wait`, and nothing beyond.

Relax's names are its whole interface. The session's id is its key, too.
"""

import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path

POLL_S = 0.2


def call(method: str, path: str, body: dict | None = None) -> bytes:
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["AGENT_SERVER_URL"] + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def main() -> int:
    session, result = "", Path(os.environ["RELAX_SESSION_IO_DIR"], "result.json")

    def cancel(_number, _frame):
        if session:
            call("POST", f"/sessions/{session}/cancel")
        os._exit(143)

    signal.signal(signal.SIGTERM, cancel)
    signal.signal(signal.SIGINT, cancel)
    names = {"session_id": "SESSION_ID", "group_id": "GROUP_ID", "mode": "ROLLOUT_MODE", "base_url": "BASE_URL"}
    request = {field: os.environ[f"RELAX_{name}"] for field, name in names.items()}
    created = call("POST", "/sessions", request | {"api_key": os.environ["RELAX_SESSION_ID"]})
    session = json.loads(created)["session_id"]
    while True:
        time.sleep(POLL_S)
        result.write_bytes(call("GET", f"/sessions/{session}"))
        view = json.loads(result.read_text())
        if view["status"] in ("completed", "failed", "cancelled"):
            break
    if view["status"] == "completed":
        metadata = {"exit_status": view["agent_exit_status"], "submission": view["submission"]}
        output = {"metadata": metadata | {"n_calls": view["n_calls"]}, "reward": view["reward"]}
        Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))
    elif (folder := os.environ.get("AGENT_CLIENT_TRACE_DIR")) and view["status"] == "failed":
        os.makedirs(folder, exist_ok=True)
        shutil.copy(result, f"{folder}/{os.environ['RELAX_SESSION_ID']}.failed.json")
    print(json.dumps(view), file=sys.stderr)
    return view.get("exit_code") or 0 if view["status"] == "completed" else view.get("exit_code") or 1


if __name__ == "__main__":
    sys.exit(main())
