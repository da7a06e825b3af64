"""Whom an address of the network belongs to, as far as it shows."""

from __future__ import annotations

import ipaddress


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the IPv6 network of one customer."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.IPv6Network((ip, 64), strict=False))
    return str(ip)
