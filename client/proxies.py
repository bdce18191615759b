"""The one rule of proxies for all calls between the parts: client, agent server, agents, model APIs, evaluation,
conformance checks, trainer.

By default every call is direct, whatever HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say: a session's key and the
model's text must not leave through a proxy that was set for downloads. AGENT_SERVER_PROXIES=environment lets the calls
follow these variables. Downloads of the set-up follow them always.
Invariant: a call to loopback is direct in any case. Standard library only, Python 3.8 or later: agent_client.py runs
this file too.
"""

from __future__ import annotations

import ipaddress
import socket
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

SETTING = "AGENT_SERVER_PROXIES"
DIRECT, ENVIRONMENT = "direct", "environment"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = "no_proxy"
LOOPBACK = "localhost,127.0.0.1,::1"


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """URL of the proxy for a call to `url`; "" for a direct call. Raises ValueError for a wrong setting or proxy."""
    rule = environment.get(SETTING) or DIRECT
    if rule not in (DIRECT, ENVIRONMENT):
        raise ValueError(f"{SETTING}={rule} must be {DIRECT} or {ENVIRONMENT}; correct it")
    address = urlsplit(url)
    if rule == DIRECT or is_exempt(address, _value(EXCEPTIONS, environment)):
        return ""
    names = (f"{address.scheme}_proxy", "all_proxy")
    name, proxy = next(((name, value) for name in names if (value := _value(name, environment))), ("", ""))
    return _checked(name, proxy) if proxy else ""


def authorization(proxy: str) -> dict[str, str]:
    """The header for a proxy whose URL has a user; else none."""
    address = urlsplit(proxy)
    if address.username is None:
        return {}
    login = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def socket_route(url: str, environment: Mapping[str, str]):
    """For a client with a socket of its own: None for a direct call, else the proxy's host and port, a function that
    opens a tunnel on a connection to it (None for http), what goes before the path of a request, and header lines.

    Raises ValueError.
    """
    proxy, target = proxy_for(url, environment), urlsplit(url)
    if not proxy:
        return None
    through = urlsplit(proxy)
    headers = "".join(f"{name}: {value}\r\n" for name, value in authorization(proxy).items())
    if target.scheme == "http":
        return (through.hostname, through.port), None, f"http://{target.netloc}", headers
    host = f"[{target.hostname}]" if ":" in (target.hostname or "") else target.hostname
    address = f"{host}:{target.port or 443}"
    request = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n".encode()
    return (through.hostname, through.port), lambda connection: _open_tunnel(connection, request), "", ""


def _open_tunnel(connection: socket.socket, request: bytes) -> None:
    """The answer is read byte by byte: what follows it belongs to TLS. Raises OSError."""
    connection.sendall(request)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        if not (byte := connection.recv(1)) or len(answer) > 65536:
            raise OSError("the proxy ended the connection")
        answer += byte
    if answer.split(None, 2)[1:2] != [b"200"]:
        raise OSError(f"the proxy refused: {answer.splitlines()[0].decode(errors='replace')}")


def check_proxies(environment: Mapping[str, str]) -> None:
    """Raises ValueError for a proxy that calls could not use."""
    for name in PROXY_VARIABLES:
        if proxy := _value(name, environment):
            _checked(name, proxy)


def unused_proxies(environment: Mapping[str, str]) -> str:
    """What to add to the message about an address that does not answer; "" where no proxy is set, or all are used."""
    names = [name.upper() for name in PROXY_VARIABLES if _value(name, environment)]
    if not names or environment.get(SETTING) == ENVIRONMENT:
        return ""
    return f"; calls are direct, to use {names[0]} set {SETTING}={ENVIRONMENT}"


def environment_of_calls(environment: Mapping[str, str], rule: str) -> dict[str, str]:
    """The environment of a process whose libraries read the variables themselves, so that all of them keep the rule."""
    known = (*PROXY_VARIABLES, EXCEPTIONS)
    kept = {name: value for name, value in environment.items() if name.lower() not in known} | {SETTING: rule}
    if rule == DIRECT:
        return kept
    values = {name: value for name in PROXY_VARIABLES if (value := _value(name, environment))}
    values[EXCEPTIONS] = ",".join(filter(None, (_value(EXCEPTIONS, environment), LOOPBACK)))
    return kept | values | {name.upper(): value for name, value in values.items()}


def exempt(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that name the host of a direct call for libraries that know no ranges of addresses in NO_PROXY."""
    exceptions, host = _value(EXCEPTIONS, environment), urlsplit(url).hostname
    if not exceptions or not host or proxy_for(url, environment):
        return {}
    value = f"{exceptions},{host}"
    return {EXCEPTIONS: value, EXCEPTIONS.upper(): value}


def is_exempt(address: SplitResult, exceptions: str) -> bool:
    """Whether it is loopback, or named in NO_PROXY's value: by name, suffix, address, range, HOST:PORT or *."""
    host = (address.hostname or "").lower()
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if host == "localhost" or (ip is not None and ip.is_loopback):
        return True
    for entry in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        name = entry.lstrip("*").lstrip(".")
        if entry == "*" or host == name or host.endswith(f".{name}") or name == f"{host}:{address.port}":
            return True
        if ip is not None and _holds(entry, ip):
            return True
    return False


def _holds(entry: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ip in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


def _value(name: str, environment: Mapping[str, str]) -> str:
    """Of a variable in either case; the lower one wins, as in curl."""
    return (environment.get(name) or environment.get(name.upper()) or "").strip()


def _checked(name: str, proxy: str) -> str:
    """Raises ValueError unless it is an HTTP proxy."""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    address = urlsplit(proxy)
    try:
        usable = address.scheme == "http" and bool(address.hostname) and bool(address.port)
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        shown = proxy.rpartition("@")[2]  # no password into a log
        raise ValueError(f"{name.upper()}={shown} must be http://HOST:PORT; set such a proxy or {SETTING}={DIRECT}")
    return proxy
