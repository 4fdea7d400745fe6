"""Converts each IP address to one canonical spelling, and recognizes the loopback addresses of this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def canonical_host(host: str) -> str:
    """Returns the shortest spelling of an IP address. Returns names and `*` unchanged.

    Kafka writes the address `::1` as `0:0:0:0:0:0:0:1`. An IPv4 address in IPv6 form (`::ffff:10.0.0.1`) becomes the
    IPv4 address, as in Java.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=4096)
def is_loopback(host: str) -> bool:
    """Returns True for `localhost` and loopback addresses. Returns False for every other name, because DNS may map the
    name to another machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(canonical_host(host)).is_loopback
    except ValueError:
        return False
