"""Connections that have not shown a valid link or cookie yet: few at once, from one address fewer.

Who opens connections and says nothing takes none from those who have been let in.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol

_IPV6_NETWORK = 64
"""Who has one address of such a network has all of them."""


class Client(Protocol):
    """Somebody who can be sent away."""

    def dismiss(self) -> None:
        """End what is under way."""


class Unadmitted:
    """Knows who has not been let in yet, in the order in which they came."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._known: dict[Client, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, client: Client, address: str | None) -> bool:
        """Know of a client; False when too many of its address wait already.

        When too many wait in all, the one that has waited longest is sent away. ``address`` None
        is one that many share.
        """
        network = "" if address is None else _network_of(address)
        if network and self._counts.get(network, 0) >= self._most_per_address:
            return False
        if len(self._known) >= self._most:
            oldest = next(iter(self._known))
            self.discard(oldest)
            oldest.dismiss()
        self._known[client] = network
        self._counts[network] = self._counts.get(network, 0) + 1
        return True

    def discard(self, client: Client) -> None:
        """Count a client no longer: it was let in, or has gone."""
        network = self._known.pop(client, None)
        if network is None:
            return
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


def _network_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_NETWORK), strict=False))
