"""Which addresses a session's model calls may go to: AGENT_SERVER_BASE_URLS.

Invariant: scheme, host and port are compared as wholes and the path by its segments, so that nothing that merely looks alike gets through:
neither http://good.example.evil nor http://good.example@evil, http://good.example/v1/../admin or http://good.example/v12.
"""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from client.errors import ConfigError, InvalidRequest

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """A URL as far as it is compared. `path`: its segments."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises ValueError for what readers of URLs may understand differently."""
        if any(c in url for c in "\\@?#") or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("it must be scheme://host:port/path, without user, query or fragment")
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError("it must begin with http://HOST or https://HOST")
        path = tuple(segment for segment in parts.path.split("/") if segment)
        if any(unquote(segment) in (".", "..") or "%2f" in segment.lower() for segment in path):
            raise ValueError("its path must not go up")
        return cls(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme], path)

    def holds(self, other: "Address") -> bool:
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port) and other.path[
            : len(self.path)
        ] == self.path


def parse_setting(text: str) -> tuple[Address, ...]:
    """The prefixes of a comma-separated list. Raises ConfigError."""
    addresses = []
    for url in filter(None, map(str.strip, text.split(","))):
        try:
            addresses.append(Address.parse(url))
        except ValueError as wrong:
            raise ConfigError(
                f"AGENT_SERVER_BASE_URLS: {url!r}: {wrong}; give URLs like http://10.0.0.1:8000, separated by commas",
                field="base_urls",
            ) from None
    return tuple(addresses)


def check(url: str, allowed: tuple[Address, ...]) -> None:
    """Raises InvalidRequest where there are allowed addresses and `url` belongs to none of them."""
    if not allowed:
        return
    try:
        address = Address.parse(url)
    except ValueError as wrong:
        raise InvalidRequest(f"field 'base_url': {wrong}; got {url!r:.200}", field="base_url") from None
    if not any(prefix.holds(address) for prefix in allowed):
        raise InvalidRequest(
            f"field 'base_url' must belong to one of this server's AGENT_SERVER_BASE_URLS; got {url!r:.200}; ask its operator to add it",
            field="base_url",
        )
