"""Whose network a connection comes from, and what was agreed for it.

A network's row is found by the name of its bridge, which is never used again; its gateway's address
may be another network's tomorrow. So what is remembered holds only while that bridge has it, and
while the database is heard: a proxy that is cut off learns of no policy that was replaced, and of
no record that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.settling import Settling
from workspaces.egress.host_policy import Policy
from workspaces.egress.open_networks import Network
from workspaces.models import CredentialReference, EgressNetwork

if TYPE_CHECKING:
    from workspaces.egress.bound.authorities import Authority

UNKNOWN_SECONDS = 1.0
"""How long nobody asks again for a network that was not found."""
LOOK_SECONDS = 0.4
"""How soon a policy that was replaced is found out."""
UNHEARD_SECONDS = 60.0
"""After so long without an answer of the database nothing passes until there is one."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h

log = structlog.get_logger(__name__)


class KnownNetworks:
    """The networks of this machine whose bridges begin with ``prefix``.

    ``on_heard`` is called after each look at the database that was answered.
    """

    def __init__(
        self, prefix: str, journal: Journal, on_heard: Callable[[], None] = lambda: None
    ) -> None:
        self._prefix = prefix
        self._journal = journal
        self._settling = Settling(journal)
        self._on_heard = on_heard
        self._heard = time.monotonic()
        self._is_cut_off = False
        self._known: dict[str, tuple[str, Network]] = {}
        self._gone: dict[str, Network] = {}
        """Whose bridge is gone while something was open: it is still to be told how that ended."""
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
            self._forget_gone()
            bridge = self._bridge_with(gateway)
            now = time.monotonic()
            if not bridge or self._unknown_until.get(bridge, now) > now:
                return None
            network = await asyncio.to_thread(_of_bridge, bridge, self._journal)
            known = self._known.get(gateway)
            if known is not None and known[0] == bridge:
                # Found for another connection meanwhile; there is one, or not all that is open in
                # it would end when its policy is replaced.
                return known[1]
            if network is not None:
                self._known[gateway] = (bridge, network)
            else:
                now = time.monotonic()
                kept = {at: until for at, until in self._unknown_until.items() if until > now}
                self._unknown_until = {**kept, bridge: now + UNKNOWN_SECONDS}
            return network

    async def follow(self) -> None:
        """Give networks the policies that replace theirs, again and again, until cancelled.

        While the database does not answer they keep what they have, but not for long: then nothing
        passes in any of them.
        """
        looking: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self._cut_off_or_not()
                # Of one that hangs nobody waits for the end.
                if looking is None or looking.done():
                    looking = asyncio.create_task(self._guarded_look())
        finally:
            if looking is not None:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking
            self._settling.stop()

    async def _guarded_look(self) -> None:
        try:
            await self.look()
        except Exception:
            log.exception("egress_policies_not_looked_at")

    def _cut_off_or_not(self) -> None:
        is_cut_off = time.monotonic() - self._heard > UNHEARD_SECONDS
        if is_cut_off != self._is_cut_off:
            log.warning("egress_cut_off" if is_cut_off else "egress_not_cut_off_any_more")
        self._is_cut_off = is_cut_off
        for network in self._all_known().values():
            network.cut_off(is_cut_off)

    def _all_known(self) -> dict[str, Network]:
        return {**self._gone, **dict(self._known.values())}

    async def look(self) -> None:
        """Do it once: a connection that another policy does not allow is closed."""
        await self._settle()
        known = dict(self._known.values())
        if not known:
            return
        for bridge, policy, revision in await asyncio.to_thread(_replaced, _revisions(known)):
            if known[bridge].replace_policy(policy, revision):
                log.info("egress_policy_replaced", bridge=bridge, revision=revision)

    async def _settle(self) -> None:
        """Let nothing pass where a record is about to end, and store what was decided there."""
        asked = time.monotonic()
        waiting = await asyncio.to_thread(_ending, self._journal.id)
        if waiting is None:
            return
        self._heard = asked
        self._on_heard()
        # Not before: one that became known meanwhile would go on for ever.
        self._gone = {bridge: one for bridge, one in self._gone.items() if one.is_open}
        known = self._all_known()
        quiet: dict[UUID, bool] = {}
        for attempt_id, bridge in waiting:
            network = known.get(bridge)
            if network is not None and not network.ended:
                network.end()
            is_quiet = network is None or network.is_quiet
            quiet[attempt_id] = quiet.get(attempt_id, True) and is_quiet
        for attempt_id in quiet:
            self._journal.close(attempt_id)
        self._settling.go_on({who for who, is_quiet in quiet.items() if is_quiet})

    def _forget_gone(self) -> None:
        """Forget networks whose bridge is gone."""
        for at, (bridge, network) in list(self._known.items()):
            if address_of(bridge) != at:
                del self._known[at]
                if network.is_open:
                    self._gone[bridge] = network

    def _bridge_with(self, gateway: str) -> str:
        names = (name for _, name in socket.if_nameindex() if name.startswith(self._prefix))
        return next((name for name in names if address_of(name) == gateway), "")


def _revisions(known: dict[str, Network]) -> dict[str, int]:
    return {bridge: network.revision for bridge, network in known.items()}


def _replaced(known: dict[str, int]) -> list[tuple[str, Policy, int]]:
    """Return the policies of these bridges that are not the revision that is known."""
    close_old_connections()
    try:
        rows = EgressNetwork.objects.filter(pk__in=known)
        revisions = rows.values_list("pk", "revision")
        changed = [bridge for bridge, revision in revisions if known[bridge] != revision]
        if not changed:
            return []
        return [
            (row.pk, _policy_of(row), row.revision)
            for row in EgressNetwork.objects.filter(pk__in=changed)
        ]
    except (DatabaseError, InterfaceError) as error:
        log.warning("egress_policies_not_looked_at", reason=type(error).__name__)
        return []
    finally:
        close_old_connections()


def _policy_of(row: EgressNetwork) -> Policy:
    """Return the policy of a network; one that cannot be read allows nothing."""
    try:
        return Policy.from_wire(row.policy)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.error("egress_policy_not_read", bridge=row.pk, reason=type(error).__name__)
        return Policy(default_allow=False, rules=())


def _ending(journal: str) -> list[tuple[UUID, str]] | None:
    """Return what waits to be settled; None when the database does not answer."""
    close_old_connections()
    try:
        return serving.ending(journal)
    except (DatabaseError, InterfaceError) as error:
        log.warning("egress_endings_not_looked_at", reason=type(error).__name__)
        return None
    finally:
        close_old_connections()


def _of_bridge(bridge: str, journal: Journal) -> Network | None:
    close_old_connections()
    try:
        row = EgressNetwork.objects.select_related("attempt__workspace").filter(pk=bridge).first()
        if row is None or not serving.take(bridge, row.attempt_id, journal.id):
            return None
        journal.follow(row.served_by, row.attempt_id)
        return network_of(row)
    except (DatabaseError, InterfaceError, KeyError, TypeError, ValueError) as error:
        log.warning("egress_policy_not_read", bridge=bridge, reason=type(error).__name__)
        return None
    finally:
        close_old_connections()


def network_of(row: EgressNetwork) -> Network:
    """Return what is agreed for a network, ready to be served."""
    policy = Policy.from_wire(row.policy)
    attempt = row.attempt
    if row.is_build:
        reason = "A build's TLS is not opened, so nobody sees its requests."
        return Network(attempt.pk, policy, no_authority=reason)
    bound = CredentialReference.objects.filter(attempt=attempt).exclude(placeholder="")
    authority, reason = _authority(attempt.workspace_id)
    return Network(
        attempt.pk,
        policy,
        owner_user_id=attempt.workspace.owner_user_id,
        placeholders={
            account_id: placeholder.encode()
            for account_id, placeholder in bound.values_list("account_id", "placeholder")
        },
        authority=authority,
        no_authority=reason,
        revision=row.revision,
    )


def _authority(workspace_id: UUID) -> tuple[Authority | None, str]:
    # With the first workspace: an idle proxy does without what makes certificates.
    from workspaces.egress.bound.authorities import NoAuthority, open_authority

    try:
        return open_authority(workspace_id), ""
    except NoAuthority as error:
        return None, str(error)


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this machine; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(told[20:24])
