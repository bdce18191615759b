"""Typed values of the settings with a syntax of their own: base URLs, penalties, binds, networks.

Invariant: light to import; pure, except that a bind's folder must exist. A parser raises ValueError with the rule,
the entry and the remedy; agent_server/config.py adds the variable's name.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator

from agent_server.sandboxes.network_rules import NEVER

DEFAULT_PORTS = {"http": 80, "https": 443}
EXIT_STATUS = re.compile(r"[A-Za-z_]\w*(?:: ?\S.*)?")  # "CommandFailed", "CommandFailed: 2"


@dataclass(frozen=True)
class Address:
    """The parts of a URL that are compared. `path`: its segments."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises ValueError for a URL that two parsers may read differently."""
        if any(c in url for c in "\\@?#") or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("it must be scheme://host:port/path, without user, query or fragment")
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError("it must begin with http://HOST or https://HOST")
        path = tuple(segment for segment in parts.path.split("/") if segment)
        if any(unquote(segment) in (".", "..") or "%2f" in segment.lower() for segment in path):
            raise ValueError("its path must not go up")
        return cls(parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], path)

    def is_prefix_of(self, other: "Address") -> bool:
        """Same scheme, host and port, and `other`'s path begins with this one's segments."""
        same_origin = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same_origin and other.path[: len(self.path)] == self.path


def parse_base_urls(text: str) -> tuple[Address, ...]:
    """URL prefixes, separated by commas. Raises ValueError."""
    return tuple(map(_parse_base_url, _entries(text)))


def _parse_base_url(url: str) -> Address:
    try:
        return Address.parse(url)
    except ValueError as invalid:
        raise ValueError(f"{url!r}: {invalid}; give URLs like http://10.0.0.1:8000, separated by commas") from None


def parse_penalties(text: str) -> dict[str, float]:
    """Agent exit status -> number from -1 to 0, from `LimitsExceeded=-0.5,TimeExceeded=-0.2`. Raises ValueError."""
    penalties: dict[str, float] = {}
    for entry in _entries(text):
        status, _, number = (part.strip() for part in entry.rpartition("="))
        if not EXIT_STATUS.fullmatch(status):
            raise ValueError(
                f"penalties are STATUS=NUMBER, separated by commas; got {entry!r}."
                " Write for example LimitsExceeded=-0.5"
            )
        if status in penalties:
            raise ValueError(f"an exit status has one penalty; {status!r} has two. Leave one of them out")
        penalties[status] = _parse_penalty(entry, number)
    return penalties


def _parse_penalty(entry: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not -1.0 <= number <= 0.0:
        raise ValueError(
            f"a penalty is a number from -1 to 0, added to the reward; got {entry!r}."
            " Write for example LimitsExceeded=-0.5"
        )
    return number


def parse_binds(text: str) -> tuple[tuple[Path, str], ...]:
    """Folders from `HOST:INSIDE,...`; without `:INSIDE` the path inside is the host's. Raises ValueError."""
    return tuple(map(_parse_bind, _entries(text)))


def _parse_bind(entry: str) -> tuple[Path, str]:
    host, _, inside = entry.partition(":")
    inside = inside.removesuffix(":ro") or host
    if not host.startswith("/") or not inside.startswith("/") or ":" in inside:
        raise ValueError(f"{entry!r} is not HOST:INSIDE with absolute paths; binds are read-only and take no options")
    if not Path(host).exists():
        raise ValueError(f"{host} does not exist on this machine; make it, or leave it out")
    return Path(host), inside


def parse_networks(text: str) -> tuple[IPv4Network, ...]:
    """IPv4 networks or addresses, separated by commas. Raises ValueError."""
    return tuple(map(_parse_network, _entries(text)))


def _parse_network(entry: str) -> IPv4Network:
    try:
        network = IPv4Network(entry)
    except ValueError as invalid:
        raise ValueError(f"{invalid}; give IPv4 networks like 10.1.0.0/16, separated by commas") from None
    if any(network.overlaps(never) for never in NEVER):
        raise ValueError(f"{entry} has loopback, multicast or reserved addresses, which cannot be allowed; narrow it")
    return network


def _entries(text: str) -> list[str]:
    """The non-empty entries of a comma-separated list, stripped."""
    return [entry for entry in map(str.strip, text.split(",")) if entry]


def _from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parse text from the environment; let a value through that is parsed already (settings travel as JSON)."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


BaseUrls = Annotated[tuple[Address, ...], _from_text(parse_base_urls)]
Penalties = Annotated[Mapping[str, float], _from_text(parse_penalties)]
Binds = Annotated[tuple[tuple[Path, str], ...], _from_text(parse_binds)]  # (host folder, path inside)
Networks = Annotated[tuple[IPv4Network, ...], _from_text(parse_networks)]
