"""Whose network a connection comes from, and what was agreed for it.

A network's row is found by the name of its bridge, which is never used again; its gateway's address
may be another network's tomorrow. So what is remembered holds only while that bridge has it.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections

from workspaces.blueprint import Egress
from workspaces.egress.host_policy import Policy, UnknownPreset
from workspaces.egress.presets import PresetsError, read_presets
from workspaces.egress.proxy import Network
from workspaces.models import Attempt, EgressNetwork
from workspaces.runtimes.base import LaunchError

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h

log = structlog.get_logger(__name__)


class KnownNetworks:
    """The networks of this machine whose bridges begin with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, tuple[str, Network]] = {}
        self._asking = asyncio.Semaphore(4)

    async def whose(self, gateway: str) -> Network | None:
        """Return the network whose gateway has an address; None when there is none.

        Also None when the database cannot be asked: then nothing passes.
        """
        known = self._known.get(gateway)
        if known is not None and address_of(known[0]) == gateway:
            return known[1]
        async with self._asking:
            known = self._known.get(gateway)  # somebody else may have asked meanwhile
            if known is not None and address_of(known[0]) == gateway:
                return known[1]
            self._known = {at: one for at, one in self._known.items() if address_of(one[0]) == at}
            bridge = self._bridge_with(gateway)
            network = await asyncio.to_thread(_of_bridge, bridge) if bridge else None
            if network is not None:
                self._known[gateway] = (bridge, network)
            return network

    def _bridge_with(self, gateway: str) -> str:
        names = (name for _, name in socket.if_nameindex() if name.startswith(self._prefix))
        return next((name for name in names if address_of(name) == gateway), "")


def _of_bridge(bridge: str) -> Network | None:
    close_old_connections()
    try:
        row = EgressNetwork.objects.filter(pk=bridge).first()
        return None if row is None else Network(row.attempt_id, Policy.from_wire(row.policy))
    except (DatabaseError, InterfaceError, KeyError, TypeError, ValueError):
        log.exception("egress_policy_not_read", bridge=bridge)
        return None
    finally:
        close_old_connections()


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this machine; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(told[20:24])


def egress_of(attempt: Attempt, egress: Egress | None) -> Callable[[str], None] | None:
    """Return what makes the policy of a new network known, by the name of its bridge.

    None when there is no policy. Raises ``egress-not-enforced`` when its presets cannot be used.
    """
    if egress is None:
        return None
    try:
        policy = Policy.of(egress, read_presets(settings.SVC_EGRESS_PRESETS)).to_wire()
    except UnknownPreset as error:
        raise LaunchError(
            "egress-not-enforced", f"This installation has no preset {error} any more."
        ) from error
    except PresetsError as error:
        log.error("egress_presets_not_read", reason=str(error))
        raise LaunchError(
            "egress-not-enforced", "The presets of this installation cannot be read."
        ) from error

    def register(bridge: str) -> None:
        EgressNetwork.objects.create(bridge=bridge, attempt_id=attempt.pk, policy=policy)

    return register
