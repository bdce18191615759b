"""Reads text files out of a sandbox."""

from agent_server.grading.datasets.base import SETUP_TIMEOUT_S
from agent_server.sandboxes.base import Sandbox

MAX_READ_BYTES = 64 * 2**20
CHUNK_BYTES = 8 * 2**20  # below the limit of one command's output


def read_text(sandbox: Sandbox, path: str) -> str:
    """A text file of the sandbox, at most the last MAX_READ_BYTES; "" where there is none that can be read.

    Unreadable is empty and no error: the snapshots before the tests are read in the same way, so what fails now was
    broken by the tests. Raises SandboxDied, SandboxLimitExceeded.
    """
    content = b""
    while True:
        command = (
            f"[ -f {path} ] && tail -c {MAX_READ_BYTES} {path} | tail -c +{len(content) + 1} | head -c {CHUNK_BYTES}"
        )
        result = sandbox.run_clean(command, cwd="/", timeout_s=SETUP_TIMEOUT_S)
        chunk = b"" if result.returncode else result.data
        content += chunk
        if len(chunk) < CHUNK_BYTES:
            return content.decode(errors="replace")
