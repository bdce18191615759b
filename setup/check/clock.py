"""Checks of this machine's clock: its synchronisation, and its difference from other machines."""

import ctypes
import os
import sys
import time
from email.utils import parsedate_to_datetime

import requests

from client.errors import ConfigError
from client.http_session import http_session
from setup.check.result import OK, WARN, CheckResult

MAX_SKEW_S = 5.0  # beyond it, the logs of two machines cannot be ordered
TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
TIMEX_BYTES, MAXERROR_OFFSET = 256, 24  # size of struct timex, and the offset of its field maxerror (microseconds)


def check_clock() -> CheckResult:
    """Report the kernel's state of the clock (adjtimex without changes)."""
    timex = (ctypes.c_char * TIMEX_BYTES)()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        found = f"its state cannot be read: {os.strerror(ctypes.get_errno())}"
        return CheckResult(WARN, "clock", found, "check with `timedatectl` on the host that it is synchronised by NTP")
    if state == TIME_ERROR:
        remedy = "run chrony or systemd-timesyncd on the host: logs and TLS need the time of day"
        return CheckResult(WARN, "clock", "not synchronised by NTP", remedy)
    error_us = int.from_bytes(timex.raw[MAXERROR_OFFSET : MAXERROR_OFFSET + 8], sys.byteorder, signed=True)
    return CheckResult(OK, "clock", f"synchronised, to within {error_us / 1e6:.2g} s")


def check_skew(name: str, url: str) -> CheckResult:
    """Compare the clock with the Date header of an HTTP response, corrected by half the round trip and half its
    resolution."""
    try:
        with http_session(url) as http:
            sent = time.time()
            response = http.get(url, timeout=5, allow_redirects=False, stream=True)
            local = (sent + time.time()) / 2
        remote = parsedate_to_datetime(response.headers["Date"]).timestamp() + 0.5
    except (requests.RequestException, ConfigError, KeyError, ValueError) as error:
        found = f"{url} gives no date, so its clock was not compared: {type(error).__name__}: {error}"
        return CheckResult(WARN, name, found, "check that it runs and that the URL is right")
    if abs(local - remote) > MAX_SKEW_S:
        remedy = "synchronise both by NTP: otherwise their logs cannot be compared"
        return CheckResult(WARN, name, f"{url} is {remote - local:+.0f} s from this machine's clock", remedy)
    return CheckResult(OK, name, f"{url} is within {MAX_SKEW_S:g} s of this machine's clock")
