"""Output file of a sandbox's commands: a memfd, read with pread.

Invariant: reading never waits, whatever process holds the file open for writing.
"""

import os

OUTPUT_LIMIT_BYTES = 16 * 2**20  # output of one command, before the command is killed
MESSAGE_BYTES = 2000


class OutputFile:
    """File that a sandbox inherits as its standard error. It has no path, so /proc inside shows none of the host."""

    def __init__(self) -> None:
        self._file = open(os.memfd_create("output"), "w+b", buffering=0)  # noqa: SIM115 (closed in close())

    def open_for_append(self) -> int:
        """New descriptor for writers. With O_APPEND, late writers continue at the end after a truncation."""
        return os.open(f"/proc/self/fd/{self._file.fileno()}", os.O_WRONLY | os.O_APPEND)

    def truncate(self) -> None:
        """Drop the output of earlier commands."""
        os.ftruncate(self._file.fileno(), 0)

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def over_limit(self) -> bool:
        """Whether the output is longer than one command may write."""
        return self.size() > OUTPUT_LIMIT_BYTES

    def read(self) -> str:
        """Output up to the limit. Of a longer output, the first and the last half, with a note between them."""
        size, half = self.size(), OUTPUT_LIMIT_BYTES // 2
        if size <= OUTPUT_LIMIT_BYTES:
            return self._decode(size, 0)
        return f"{self._decode(half, 0)}\n[{size - 2 * half} bytes left out]\n{self._decode(half, size - half)}"

    def message(self) -> str:
        """End of the output, for error messages."""
        return self._decode(MESSAGE_BYTES, max(0, self.size() - MESSAGE_BYTES)).strip() or "(no message)"

    def close(self) -> None:
        """Release the memory; repeatable."""
        self._file.close()

    def _decode(self, length: int, offset: int) -> str:
        return os.pread(self._file.fileno(), length, offset).decode(errors="replace")
