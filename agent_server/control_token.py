"""The token of the calls that change the server for everyone: AGENT_SERVER_TOKEN, else one that the first start makes.

It lies in the work directory and is readable by the server's user alone. So another user of the machine, who reaches
loopback too, cannot change the server.
Invariant: a restart keeps the token.
"""

import secrets

from agent_server.config import Settings
from agent_server.private_files import write_private
from client.errors import StorageError


def control_token(settings: Settings) -> str:
    """The token, made now where there is none. Raises StorageError."""
    return settings.token or _read(settings) or _make(settings)


def _read(settings: Settings) -> str:
    try:
        return settings.control_token_file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as refused:
        raise _unusable(settings, refused) from refused


def _make(settings: Settings) -> str:
    token = secrets.token_urlsafe(32)
    try:
        write_private(settings.control_token_file, token.encode())
    except OSError as refused:
        raise _unusable(settings, refused) from refused
    return token


def _unusable(settings: Settings, refused: OSError) -> StorageError:
    return StorageError(
        f"without AGENT_SERVER_TOKEN the server keeps a token in {settings.control_token_file}, which cannot be used"
        f" ({refused.strerror}); set AGENT_SERVER_TOKEN, or make the file readable and writable"
    )
