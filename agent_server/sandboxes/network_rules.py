"""Rules of nftables for the addresses that a sandbox with a network reaches.

Invariant: pure. This machine's addresses are refused whatever is allowed; what no rule names is dropped.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

SANDBOX_NETWORK = IPv4Network("192.0.0.0/24")  # for protocols (RFC 6890): no machine outside has such an address
RESOLVER = IPv4Address("192.0.0.3")  # slirp4netns forwards it to this machine's name server
DNS_PORT = 53
REJECT = "reject with icmpx type admin-prohibited"  # an error at once; a dropped packet would be waited for
# Never addresses of another machine: this network, loopback, multicast, reserved and broadcast.
NEVER = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))
# Private, shared, link-local (a cloud's metadata), and for benchmarks.
PRIVATE = tuple(
    map(
        IPv4Network,
        ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"),
    )
)


def ruleset(local: Iterable[IPv4Address], allowed: Iterable[IPv4Network]) -> str:
    """Rules for what a sandbox sends: a file of nft. IPv6 has no rule, so it is refused.

    `local`: this machine's addresses. `allowed`: networks that may be reached although they are PRIVATE.
    """
    refused = [*NEVER, SANDBOX_NETWORK, *map(IPv4Network, local)]
    accept_allowed = f"ip daddr {_set(allowed)} accept" if list(allowed) else ""
    return f"""
table inet sandbox {{
  chain output {{
    type filter hook output priority filter; policy drop;
    oifname "lo" accept
    ip daddr {RESOLVER} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} accept
    ip daddr {_set(refused)} {REJECT}
    {accept_allowed}
    ip daddr {_set(PRIVATE)} {REJECT}
    meta nfproto ipv4 accept
    {REJECT}
  }}
}}
"""


def _set(networks: Iterable[IPv4Network]) -> str:
    """nft refuses a set whose intervals overlap."""
    return "{ " + ", ".join(map(str, collapse_addresses(networks))) + " }"
