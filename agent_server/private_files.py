"""Files of sessions: readable for the server's user alone, and without the session's key."""

import os
from pathlib import Path

from client.atomic_write import replacing
from client.redaction import Redaction

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def open_private(path: str, flags: int) -> int:
    """An opener for open(): a new file gets FILE_MODE."""
    return os.open(path, flags, FILE_MODE)


def make_private_folder(path: Path) -> None:
    """Make the folder, or close an existing one to other users. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(FOLDER_MODE)


def write_private(path: Path, content: bytes) -> None:
    """Replace the file's content, whole or not at all; the file gets FILE_MODE. Raises OSError."""
    with replacing(path) as temporary:
        temporary.touch(FILE_MODE)
        temporary.write_bytes(content)


def make_private(path: Path, redaction: Redaction) -> None:
    """Close a file that an agent wrote to other users, and remove the key from it. Raises OSError."""
    path.chmod(FILE_MODE)
    content = path.read_bytes()
    redacted = redaction(content)
    if redacted != content:
        write_private(path, redacted)
