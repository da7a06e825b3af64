"""Which hosts a source may come from: the guard against requests into the operator's own network.

A tenant chooses the URL, the worker opens the connection. So a host is resolved once, every address
it has is judged, and the caller connects to exactly these addresses; asking the name service again
when connecting would let an attacker answer differently the second time.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from threading import Event

from controlplane.subprocesses import run_process

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PLATFORM_SERVICES = (
    ipaddress.ip_network("168.63.129.16/32"),
    ipaddress.ip_network("192.0.0.0/24"),
)
"""Answered by the hosting platform: metadata and agents of virtual machines."""
_ENDS_IN_NUMBER = re.compile(r"(?:^|\.)(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?$")

# A lookup has no time limit of its own; a thread that hangs in one cannot be ended, a process can.
_LOOKUP = """\
import socket, sys
try:
    found = socket.getaddrinfo(sys.argv[1], None, type=socket.SOCK_STREAM)
except (OSError, UnicodeError):
    sys.exit(1)
print("\\n".join(dict.fromkeys(entry[4][0] for entry in found)))
"""


class LookupTimedOutError(Exception):
    """The name service did not answer in time."""


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet, whatever it is wrapped in."""
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour
        if wrapped is None and address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(wrapped)
        # Teredo carries an IPv4 address too and has no honest use here.
        if address.teredo is not None or address.is_site_local:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not any(address in network for network in _PLATFORM_SERVICES)
    )


def parse_literal(host: str) -> IPAddress | None:
    """Return the address that ``host`` spells, or ``None`` when it is a name.

    Raises ``ValueError`` for what a resolver would read as an address but a reader would not:
    ``2130706433``, ``0x7f.1``, ``127.1``, an IPv6 zone.
    """
    if ":" in host:
        address = ipaddress.IPv6Address(host)
        if address.scope_id:
            raise ValueError(host)
        return address
    return ipaddress.IPv4Address(host) if _ENDS_IN_NUMBER.search(host) else None


def look_up(host: str, *, timeout: float, cancelled: Event | None = None) -> list[IPAddress]:
    """Return every address of ``host``, IPv4 first; empty when it has none or does not exist.

    Raises :class:`LookupTimedOutError`.
    """
    literal = parse_literal(host)
    if literal is not None:
        return [literal]
    result = run_process(
        [sys.executable, "-I", "-S", "-c", _LOOKUP, host],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        timeout=timeout,
        cancelled=cancelled,
        stdout_limit=16 * 1024,
        grace=0.5,
    )
    if result.timed_out:
        raise LookupTimedOutError(host)
    found = []
    for line in result.stdout.decode("ascii", "replace").split():
        try:
            found.append(ipaddress.ip_address(line.partition("%")[0]))
        except ValueError:
            continue
    return sorted(found, key=lambda address: address.version)
