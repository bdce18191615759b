"""Reads text files out of a sandbox."""

import base64
import binascii
import gzip
import zlib

from agent_server.grading.datasets.base import SETUP_TIMEOUT_S
from agent_server.sandboxes.base import Sandbox

MAX_READ_BYTES = 64 * 2**20
CHUNK_BYTES = 8 * 2**20  # packed


def read_text(sandbox: Sandbox, path: str) -> str:
    """A text file of the sandbox, at most the last MAX_READ_BYTES; "" where there is none that can be read.

    Unreadable is empty and no error: the snapshots before the tests are read in the same way, so what fails now was
    broken by the tests. Raises SandboxDied, SandboxLimitExceeded.
    """
    packed, start = b"", 1
    try:
        while True:
            command = (
                f"[ -f {path} ] && tail -c {MAX_READ_BYTES} {path} | gzip -c | tail -c +{start}"
                f" | head -c {CHUNK_BYTES} | base64 -w0"
            )
            result = sandbox.run(command, cwd="/", timeout_s=SETUP_TIMEOUT_S)
            chunk = base64.b64decode(result.output) if result.returncode == 0 else b""
            packed, start = packed + chunk, start + len(chunk)
            if len(chunk) < CHUNK_BYTES:
                return gzip.decompress(packed).decode(errors="replace") if packed else ""
    except (OSError, EOFError, zlib.error, binascii.Error):
        return ""
