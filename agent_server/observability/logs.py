"""Log of the server: one JSON object per line on standard error, with the ids of session and group where known.

Invariant: every line is valid JSON, whatever the message.
"""

import json
import logging
import time


class JsonLines(logging.Formatter):
    """Formatter of one record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"at": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        line |= getattr(record, "event", {}) | {"at": at}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up() -> None:
    """Send this process's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
