"""Whose network a connection comes from, and what was agreed for it.

A network's row is found by the name of its bridge, which is never used again; its gateway's address
may be another network's tomorrow. So what is remembered holds only while that bridge has it.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane.database.retries import retry_database
from workspaces.blueprint import Egress
from workspaces.egress.host_policy import Policy, UnknownPreset
from workspaces.egress.presets import PresetsError, read_presets
from workspaces.egress.proxy import Network
from workspaces.models import Attempt, EgressNetwork
from workspaces.runtimes.base import LaunchError

UNKNOWN_SECONDS = 1.0
"""How long nobody asks again for a network that was not found."""
REGISTER_SECONDS = 30.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h

log = structlog.get_logger(__name__)


class KnownNetworks:
    """The networks of this machine whose bridges begin with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, tuple[str, Network]] = {}
        self._unknown_until: dict[str, float] = {}
        self._asking = asyncio.Semaphore(4)

    async def whose(self, gateway: str) -> Network | None:
        """Return the network whose gateway has an address; None when there is none.

        Also None when the database cannot be asked: then nothing passes, and it is asked again a
        second later.
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
            now = time.monotonic()
            if not bridge or self._unknown_until.get(bridge, now) > now:
                return None
            network = await asyncio.to_thread(_of_bridge, bridge)
            if network is not None:
                self._known[gateway] = (bridge, network)
            else:
                now = time.monotonic()
                kept = {at: until for at, until in self._unknown_until.items() if until > now}
                self._unknown_until = {**kept, bridge: now + UNKNOWN_SECONDS}
            return network

    def _bridge_with(self, gateway: str) -> str:
        names = (name for _, name in socket.if_nameindex() if name.startswith(self._prefix))
        return next((name for name in names if address_of(name) == gateway), "")


def _of_bridge(bridge: str) -> Network | None:
    close_old_connections()
    try:
        row = EgressNetwork.objects.filter(pk=bridge).first()
        return None if row is None else Network(row.attempt_id, Policy.from_wire(row.policy))
    except (DatabaseError, InterfaceError, KeyError, TypeError, ValueError) as error:
        log.warning("egress_policy_not_read", bridge=bridge, reason=type(error).__name__)
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


@dataclass(frozen=True, slots=True)
class AgreedPolicy:
    """The policy of an attempt's networks, with the rules of its presets filled in, as JSON."""

    attempt_id: UUID
    policy: dict[str, Any]

    def __call__(self, bridge: str) -> None:
        """Make the policy of a new network known, by the name of its bridge.

        Waits half a minute for a database that does not answer. May be repeated.
        """
        told = {"attempt_id": self.attempt_id, "policy": self.policy}
        # It also makes a new connection where this one has ended during a long build.
        retry_database(
            lambda: EgressNetwork.objects.update_or_create(bridge=bridge, defaults=told),
            timeout=REGISTER_SECONDS,
        )


def egress_of(attempt: Attempt, egress: Egress | None) -> AgreedPolicy | None:
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
    return AgreedPolicy(attempt.pk, policy)
