"""Output files of a sandbox's commands: memfds, read with pread.

The worker and the sandbox's shell hold a file by read-only descriptors alone. A writer opens it anew, so the kernel can
tell whether a process that a command left behind still writes to it.
Invariant: reading never waits, whatever process holds the file open for writing. What a command prints shares its file
with nothing that an earlier command left running.
"""

import fcntl
import os
import signal

OUTPUT_LIMIT_BYTES = 16 * 2**20  # output of one command, before the command is killed
COMMAND_FILES = 8  # more commands than that which leave a writer behind share the oldest one's file
MESSAGE_BYTES = 2000


class OutputFile:
    """File that a sandbox inherits. It has no path, so /proc inside shows none of the host.

    `descriptor`: read-only; the sandbox has the same number.
    """

    def __init__(self) -> None:
        created = os.memfd_create("output")
        try:
            self.descriptor = os.open(f"/proc/self/fd/{created}", os.O_RDONLY)
        finally:
            os.close(created)

    def open_for_append(self) -> int:
        """New descriptor for writers. With O_APPEND, late writers continue at the end after a truncation."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_APPEND)

    def truncate(self) -> None:
        """Drop what was written so far."""
        if self.size():
            os.truncate(f"/proc/self/fd/{self.descriptor}", 0)

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self.descriptor).st_size

    def over_limit(self) -> bool:
        """Whether the content is longer than one command may write."""
        return self.size() > OUTPUT_LIMIT_BYTES

    def has_writer(self) -> bool:
        """Whether a process has the file open for writing. The kernel grants a read lease only where none has."""
        try:
            # The signal for a writer that comes while the lease is held must not end this process.
            fcntl.fcntl(self.descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return True
        return False

    def read(self) -> bytes:
        """Content up to the limit of one command's output."""
        return os.pread(self.descriptor, min(self.size(), OUTPUT_LIMIT_BYTES), 0)

    def read_text(self) -> str:
        """Output up to the limit. Of a longer output, the first and the last half, with a note between them."""
        size, half = self.size(), OUTPUT_LIMIT_BYTES // 2
        if size <= OUTPUT_LIMIT_BYTES:
            return self._decode(size, 0)
        return f"{self._decode(half, 0)}\n[{size - 2 * half} bytes left out]\n{self._decode(half, size - half)}"

    def message(self) -> str:
        """End of the output, for error messages."""
        return self._decode(MESSAGE_BYTES, max(0, self.size() - MESSAGE_BYTES)).strip() or "(no message)"

    def close(self) -> None:
        """Release the memory. Not repeatable."""
        os.close(self.descriptor)

    def _decode(self, length: int, offset: int) -> str:
        return os.pread(self.descriptor, length, offset).decode(errors="replace")


class OutputFiles:
    """The files of one sandbox.

    `startup`: what a command's bash and the startup files of the environment print before the command begins.
    `answers` and `errors`: standard output and standard error of the server's own commands.
    """

    def __init__(self) -> None:
        self.startup, self.answers, self.errors = OutputFile(), OutputFile(), OutputFile()
        self._commands = [OutputFile() for _ in range(COMMAND_FILES)]
        self._closed = False

    @property
    def descriptors(self) -> list[int]:
        """All descriptors."""
        return [file.descriptor for file in self._files]

    def for_command(self) -> OutputFile:
        """An empty file for a command. What was written to the files of earlier commands meanwhile is dropped."""
        for file in self._files:
            file.truncate()
        position = next((n for n, file in enumerate(self._commands) if not file.has_writer()), 0)
        self._commands.append(self._commands.pop(position))
        return self._commands[-1]

    def close(self) -> None:
        """Release the memory; repeatable."""
        if not self._closed:
            self._closed = True
            for file in self._files:
                file.close()

    @property
    def _files(self) -> list[OutputFile]:
        return [self.startup, self.answers, self.errors, *self._commands]
