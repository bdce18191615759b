"""A session of `requests` for calls between the parts: proxies by the one rule, no ~/.netrc.

Invariant: nothing but the arguments and client/proxies.py decides where a call goes and which key it carries.
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import requests

from client.errors import ConfigError
from client.proxies import proxy_for


def http_session(url: str, environment: Mapping[str, str] = os.environ) -> requests.Session:
    """A session for calls to `url` and below. REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE apply. Raises ConfigError."""
    session = requests.Session()
    session.trust_env = False  # else ~/.netrc would replace the bearer token
    session.verify = environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE") or True
    try:
        if proxy := proxy_for(url, environment):
            session.proxies = {urlsplit(url).scheme: proxy}
    except ValueError as wrong:
        raise ConfigError(str(wrong)) from None
    return session
