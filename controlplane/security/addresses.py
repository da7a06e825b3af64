"""Whom an address of the network belongs to, as far as it shows."""

from __future__ import annotations

import ipaddress

from django.conf import settings

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


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


def _parsed(address: str) -> IpAddress | None:
    """Return an address, an IPv4 one also when it is written as IPv6; None for what is none."""
    try:
        ip = ipaddress.ip_address(address.strip().partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def is_trusted_proxy(address: str) -> bool:
    """Tell whether this address is one of ``SVC_TRUSTED_PROXIES``."""
    ip = _parsed(address)
    networks = [ipaddress.ip_network(each) for each in settings.SVC_TRUSTED_PROXIES]
    return ip is not None and any(ip in network for network in networks)


def client_address(peer: str, forwarded_for: str) -> str:
    """Return where a request began: ``peer``, or whom trusted proxies name as theirs.

    ``forwarded_for`` is ``X-Forwarded-For``: each proxy adds its peer on the right. It is read from
    there as far as those who wrote it are trusted; what a client has put before that is not.
    """
    client = peer
    for each in reversed(forwarded_for.split(",")):
        if not is_trusted_proxy(client) or _parsed(each) is None:
            break
        client = each.strip()
    return client
