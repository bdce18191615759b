"""Checks a session's `base_url` against AGENT_SERVER_BASE_URLS.

Invariant: scheme, host and port are compared as wholes and the path by its segments, so that a look-alike never passes.
With http://good.example/v1 allowed, these are refused: http://good.example.evil/v1, http://good.example@evil/v1,
http://good.example/v1/../admin, http://good.example/v12.
"""

from collections.abc import Collection

from agent_server.setting_types import Address
from client.errors import InvalidRequest


def check(url: str, allowed: Collection[Address]) -> None:
    """Raises InvalidRequest where some addresses are allowed and `url` belongs to none of them."""
    if not allowed:
        return
    try:
        address = Address.parse(url)
    except ValueError as invalid:
        raise InvalidRequest(f"field 'base_url': {invalid}; got {url!r:.200}", field="base_url") from None
    if not any(prefix.is_prefix_of(address) for prefix in allowed):
        raise InvalidRequest(
            "field 'base_url' must belong to one of this server's AGENT_SERVER_BASE_URLS;"
            f" got {url!r:.200}; ask its operator to add it",
            field="base_url",
        )
