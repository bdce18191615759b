"""Folders of the host that sandboxes see, read-only: wheels, caches, licences.

Invariant: nothing of the host can be written from a sandbox.
"""

from pathlib import Path

from client.errors import ConfigError

Binds = tuple[tuple[Path, str], ...]  # (host folder, path inside)


def parse_binds(setting: str) -> Binds:
    """Those of `HOST:INSIDE,...`; INSIDE may be left out where it is the same. Raises ConfigError."""
    found = []
    for entry in filter(None, map(str.strip, setting.split(","))):
        host, _, inside = entry.partition(":")
        inside = inside.removesuffix(":ro") or host
        if not host.startswith("/") or not inside.startswith("/") or ":" in inside:
            raise ConfigError(
                f"AGENT_SERVER_BINDS: {entry!r} is not HOST:INSIDE with absolute paths; binds are read-only and take no options"
            )
        if not Path(host).exists():
            raise ConfigError(f"AGENT_SERVER_BINDS: {host} does not exist on this machine; make it, or take it out")
        found.append((Path(host), inside))
    return tuple(found)
