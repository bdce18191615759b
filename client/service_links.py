"""Recognises the variables that Kubernetes sets in each container for every Service of its namespace ("service links").

A Service `agent-server` gives AGENT_SERVER_SERVICE_HOST, AGENT_SERVER_PORT=tcp://10.0.0.7:8600,
AGENT_SERVER_PORT_8600_TCP_ADDR and more, in the names of this project's own settings.
Invariant: no variable that a person would set is taken for one.
"""

import re
from collections.abc import Mapping

_NAME = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")  # the value of NAME_PORT


def without_service_links(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The environment without the service links whose names begin with `prefix`."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.startswith(prefix) and _is_service_link(name, value))
    }


def _is_service_link(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name) or (name.endswith("_PORT") and _ADDRESS.fullmatch(value)))
