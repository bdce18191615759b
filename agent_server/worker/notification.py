"""Wake-up datagrams from workers and the API to the server's loop.

Invariant: a notification carries no data. A lost one delays the next pass of the loop and loses no result.
"""

import contextlib
import socket


def notify(address: str) -> None:
    """Wake the loop that listens at the UNIX datagram socket `address`. Every failure is ignored."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(b".", address)
