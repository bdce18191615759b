"""Whole-file writes for all sides.

Invariant: a file has its old content or its new content, never a part of either, also after SIGKILL or on a full disk.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file to write; on leaving, it replaces `path`. On an error `path` stays as it was.

    The temporary file lies in the same folder: renaming is atomic only within one file system.
    Raises OSError where the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())  # a rename may reach the disk before the data does
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace the file's content by `text`, in UTF-8. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
