"""A tiny OpenAI-compatible model whose answers a test writes beforehand: the other end of the agent's model calls.

Invariant: an answer is chosen by the caller's key and the number of calls made with it, never by chance.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass
class Hang:
    """Answer only after so many seconds (a cancel is expected to come first)."""

    seconds: float


@dataclass
class Refuse:
    """Answer with an HTTP error."""

    status: int
    body: dict


@dataclass
class ScriptedModel:
    """`scripts[key]` lists the answers to that key's calls: a shell command, raw text (`text:...`), a whole message (a
    dictionary), Hang or Refuse. Calls after the end of the list are answered with a submission."""

    scripts: dict[str, list] = field(default_factory=dict)
    requests: dict[str, list[dict]] = field(default_factory=dict)
    url: str = ""

    def answer(self, key: str, body: dict) -> tuple[int, dict]:
        calls = self.requests.setdefault(key, [])
        calls.append(body)
        script = self.scripts.get(key, [])
        step = script[len(calls) - 1] if len(calls) <= len(script) else SUBMIT
        if isinstance(step, Hang):
            time.sleep(step.seconds)
            step = SUBMIT
        if isinstance(step, Refuse):
            return step.status, step.body
        return 200, completion(step, tools=bool(body.get("tools")), number=len(calls))


def completion(step: str | dict, *, tools: bool, number: int) -> dict:
    if isinstance(step, dict):
        message = {"role": "assistant"} | step
    elif step.startswith("text:"):
        message = {"role": "assistant", "content": step.removeprefix("text:")}
    elif tools:
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": step})},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        message = {"role": "assistant", "content": f"```bash\n{step}\n```"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": f"x{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [choice],
        "usage": usage,
    }


@contextmanager
def serving() -> Iterator[ScriptedModel]:
    model = ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = model.answer(self.headers.get("Authorization", "").removeprefix("Bearer "), body)
            data = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
