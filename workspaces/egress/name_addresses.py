"""Which address stands for a name inside a workspace, and which addresses nobody may reach.

Names are answered with addresses out of a range that leads nowhere. So a connection says which name
its program has asked for, an address that was not asked for means nothing, and what a name really
resolves to is known to the proxy alone: there is nothing to rebind.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

from workspaces.runtimes.never_reached import NEVER_REACHED

NAME_ADDRESSES = IPv4Network("198.18.0.0/15")
"""Set aside for tests of networks (RFC 2544): nobody is reached there."""
MAX_NAMES = 4096


_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


def is_host_name(text: str) -> bool:
    """Tell whether a text in small letters is the name of a host, and no address."""
    return bool(_HOST_NAME.fullmatch(text)) and not text.rpartition(".")[2].isdigit()


def address_for(host: str) -> IPv4Address:
    """Return the address that stands for a name; the same after a restart."""
    number = int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big")
    usable = NAME_ADDRESSES.num_addresses - 2
    return NAME_ADDRESSES[1 + number % usable]


class AskedNames:
    """The names that one workspace has asked for, by the address that stands for them.

    It holds the latest 4096. A name that it has forgotten, or that was asked for before a restart,
    is known again once a client says it: its address is always the same.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, IPv4Address] = OrderedDict()
        self._by_address: dict[IPv4Address, set[str]] = {}

    def asked(self, host: str) -> IPv4Address:
        """Remember a name and return its address."""
        address = address_for(host)
        self._names[host] = address
        self._names.move_to_end(host)
        self._by_address.setdefault(address, set()).add(host)
        if len(self._names) > MAX_NAMES:
            forgotten, at = self._names.popitem(last=False)
            self._by_address[at].discard(forgotten)
            if not self._by_address[at]:
                del self._by_address[at]
        return address

    def only_name_at(self, address: IPv4Address) -> str | None:
        """Return the name that an address stands for; None when there is none, or several."""
        names = self._by_address.get(address, set())
        return next(iter(names)) if len(names) == 1 else None


class ReachableAddresses:
    """What the proxy may dial: public addresses that are not this machine's own.

    ``allowed`` are networks that the operator lists; ``pool`` is where workspaces live, which no
    list opens.
    """

    def __init__(self, allowed: Iterable[IPv4Network], pool: IPv4Network) -> None:
        self._allowed = tuple(allowed)
        self._never = tuple(ipaddress.collapse_addresses([*NEVER_REACHED, pool]))
        self._pool = pool

    def may_reach(self, address: IPv4Address) -> bool:
        """Tell whether an address may be dialled."""
        if address in self._pool:
            return False
        holding = [network for network in self._allowed if address in network]
        if any(network.num_addresses == 1 for network in holding):
            return True
        if is_our_own(address):
            return False
        return bool(holding) or not any(address in network for network in self._never)


def is_our_own(address: IPv4Address) -> bool:
    """Tell whether an address is one of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Only what the machine has itself can be bound to, secondary addresses too.
            probe.bind((str(address), 0))
        except OSError:
            return False
        return True
