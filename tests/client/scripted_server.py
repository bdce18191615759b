"""An agent server with scripted responses: status, body and headers of each call in turn."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from client.http_server import JsonHandler, serving

Scripted = tuple[int, dict | str, dict]  # status (0: the connection is cut), body, headers

CREATED: Scripted = (200, {"session_id": "x", "status": "queued"}, {})
RUNNING: Scripted = (200, {"session_id": "x", "client_session_id": "s", "status": "running"}, {})
COMPLETION = {"status": "completed", "reward": 0.5, "agent_exit_status": "Submitted", "submission": "", "n_calls": 1}
COMPLETED: Scripted = (200, RUNNING[1] | COMPLETION, {})
CUT: Scripted = (0, "", {})


def held(response: Scripted, seconds: float) -> Scripted:
    """The response after so many seconds. They stand in a header `hold`, which is not sent."""
    return (*response[:2], response[2] | {"hold": seconds})


def slow(response: Scripted, seconds: float) -> Scripted:
    """The response with a pause of so many seconds after each byte of its body. They stand in a header `pause`."""
    return (*response[:2], response[2] | {"pause": seconds})


@contextmanager
def scripted_server(
    responses: list[Scripted], calls: list[str], port: int = 0, *, bodies: list[dict] | None = None
) -> Iterator[str]:
    """URL of a server that gives the responses in turn, the last one for ever. Fills `calls` and `bodies`."""

    class Handler(JsonHandler):
        protocol_version = "HTTP/1.0"  # a connection per call, closed at its end

        def respond(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if bodies is not None and body:
                bodies.append(json.loads(body))
            calls.append(f"{self.command} {self.path}")
            status, body, headers = responses[min(len(calls), len(responses)) - 1]
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            time.sleep(headers.get("hold", 0))
            if not status:
                return
            try:
                self.send_response(status)
                for name, value in headers.items():
                    if name not in ("hold", "pause"):
                        self.send_header(name, value)
                if "Transfer-Encoding" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                for piece in (data[i : i + 1] for i in range(len(data))) if "pause" in headers else (data,):
                    self.wfile.write(piece)
                    time.sleep(headers.get("pause", 0))
            except OSError:
                pass  # the client is gone

        do_GET = do_POST = respond

    with serving(Handler, "127.0.0.1", port) as url:
        yield url
