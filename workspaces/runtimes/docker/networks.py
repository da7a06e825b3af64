"""Which subnet and bridge a new workspace network gets.

The engine's own address pools hold about thirty networks, so every workspace gets an explicit /28
(gateway, workspace, and room for what people start beside it) from a pool that the operator sets.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network

PREFIX_LENGTH = 28
ROUTES_HOLD_SECONDS = 60.0
"""How long is believed what was seen of a machine's routes; they are read more often than that."""
BRIDGE_NAME = "com.docker.network.bridge.name"
"""The option of a network that names its bridge on the engine's machine."""


def bridge_prefix(instance_id: str) -> str:
    """Return how the bridges of an installation begin, by which rules know them: 7 characters."""
    return f"w{hashlib.sha256(instance_id.encode()).hexdigest()[:6]}"


def egress_prefix(instance_id: str) -> str:
    """Return how the bridges begin whose workspaces reach the egress proxy only: 7 characters."""
    return f"e{bridge_prefix(instance_id)[1:]}"


def new_bridge_name(instance_id: str, *, egress: bool = False) -> str:
    """Return a name for a bridge; 15 characters are what Linux has room for.

    With ``egress`` the rules let it reach the egress proxy only, from its first packet on.
    """
    prefix = egress_prefix(instance_id) if egress else bridge_prefix(instance_id)
    return f"{prefix}{secrets.token_hex(4)}"


def network_options(bridge: str) -> dict[str, str]:
    """Return the engine's options of a network with this bridge."""
    if not bridge.startswith("e"):
        return {BRIDGE_NAME: bridge}
    # The proxy connects in its place. Should the rules be away after a restart of the machine, no
    # answer from elsewhere finds its way back.
    return {BRIDGE_NAME: bridge, "com.docker.network.bridge.enable_ip_masquerade": "false"}


def free_subnets(pool: IPv4Network, taken: Iterable[str], *, start: int) -> Iterator[IPv4Network]:
    """Yield every /28 of ``pool`` that overlaps none of ``taken``, each once.

    The walk begins at a place that ``start`` decides (any integer, for example a run's id), so that
    launches at the same moment rarely reach for the same subnet. Entries of ``taken`` that are not
    IPv4 networks are ignored.
    """
    size = 1 << (32 - PREFIX_LENGTH)
    count = pool.num_addresses // size
    first = int(pool.network_address)
    occupied = _occupied_slots(pool, taken, size)
    for step in range(count):
        slot = (start + step) % count
        if slot not in occupied:
            yield IPv4Network((first + slot * size, PREFIX_LENGTH))


def _occupied_slots(pool: IPv4Network, taken: Iterable[str], size: int) -> set[int]:
    occupied: set[int] = set()
    first, last = int(pool.network_address), int(pool.broadcast_address)
    for text in taken:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        if not isinstance(network, IPv4Network) or not network.overlaps(pool):
            continue
        low = max(int(network.network_address), first) - first
        high = min(int(network.broadcast_address), last) - first
        occupied.update(range(low // size, high // size + 1))
    return occupied


class MachineRoutes:
    """What the engine's machine reaches by itself, as the kernel told it when it was last read.

    An engine does not look at that before it makes a network: packets to a workspace there would
    go elsewhere.
    """

    def __init__(self, instance_id: str) -> None:
        self._ours = (bridge_prefix(instance_id), egress_prefix(instance_id))
        self._routes: list[tuple[str, IPv4Network]] = []
        self._read_at = float("-inf")

    def read(self, table: str) -> None:
        """Read ``/proc/net/route`` of the machine."""
        self._routes = list(_routes_in(table))
        self._read_at = time.monotonic()

    def free_subnets(
        self, pool: IPv4Network, taken: Sequence[str], *, start: int
    ) -> Iterator[IPv4Network]:
        """Yield as :func:`free_subnets` does what the machine does not reach otherwise.

        Last come those of bridges of ours that the engine does not list: it was killed and has
        forgotten them, or they are gone since the routes were read.
        """
        left, theirs = self._within(pool)
        taken = [*taken, *theirs]
        yield from free_subnets(pool, [*taken, *left], start=start)
        yield from free_subnets(pool, taken, start=start)

    def _within(self, pool: IPv4Network) -> tuple[list[str], list[str]]:
        """Return what of ``pool`` leads to bridges named like ours, and what elsewhere.

        A route to the whole pool or more yields to every network there.
        """
        found: tuple[list[str], list[str]] = ([], [])
        if time.monotonic() - self._read_at < ROUTES_HOLD_SECONDS:
            for interface, network in self._routes:
                narrow = network.prefixlen > min(pool.prefixlen, PREFIX_LENGTH - 1)
                if narrow and network.overlaps(pool):
                    found[not interface.startswith(self._ours)].append(str(network))
        return found


@cache
def machine_routes(_docker_host: str, instance_id: str) -> MachineRoutes:
    """Return what this process knows of the routes of an engine's machine."""
    return MachineRoutes(instance_id)


def _routes_in(table: str) -> Iterator[tuple[str, IPv4Network]]:
    for words in map(str.split, table.splitlines()[1:]):
        try:
            # The kernel prints the bytes of an address as a number of its own.
            address, mask = (int(words[at], 16).to_bytes(4, "little") for at in (1, 7))
            yield words[0], IPv4Network((address, str(IPv4Address(mask))))
        except (IndexError, ValueError, OverflowError):
            continue
