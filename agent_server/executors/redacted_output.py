"""Standard output and error of a worker without its session's key.

Invariant: everything that Python code of the worker prints or logs passes here, since the fork server installs this
before it imports agents.
"""

import io
import sys
from typing import TextIO

from client.redaction import Redaction


class RedactedOutput(io.TextIOBase):
    """A text stream over `stream`. Nothing is removed before `hide` is called."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._redaction: Redaction | None = None

    @classmethod
    def install(cls) -> "RedactedOutput":
        """Make it this process's standard output and standard error."""
        sys.stdout = sys.stderr = output = cls(sys.stderr)
        return output

    def hide(self, key: str) -> None:
        """Remove this key from everything that is written from now on."""
        self._redaction = Redaction(key)

    def write(self, text: str) -> int:
        self._stream.write(self._redaction(text) if self._redaction else text)
        self._stream.flush()
        return len(text)

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True
