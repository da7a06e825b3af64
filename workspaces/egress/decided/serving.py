"""Which proxy serves a network, and whether the record of its workspace is about to end.

::

    taken by a proxy ──→ ending: nothing passes any more ──→ settled: all decisions are stored
           └─────────────────────→ the proxy has died: another one takes what it has left

A network that is ending is taken by nobody. Both sides change its row in one statement, so one of
them comes first: either who ends the record finds the proxy and waits for it, or the proxy finds
that the record ends.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from workspaces.egress.decided.keeping import records
from workspaces.models import EgressNetwork


def take(bridge: str, attempt_id: UUID, journal: str) -> bool:
    """Have a network served by the proxy with this journal; False: nothing may pass in it."""
    taken = EgressNetwork.objects.filter(pk=bridge, ending_at=None)
    if not taken.update(served_by=journal, settled_at=None):
        return False
    return records().is_open(attempt_id)


def take_over(left: str, journal: str, *, but: Collection[UUID] = ()) -> None:
    """Be asked for the networks of a proxy that has died, whose decisions are stored.

    Except those of the attempts that are named, of which something is not.
    """
    theirs = EgressNetwork.objects.filter(served_by=left).exclude(attempt_id__in=but)
    theirs.update(served_by=journal)


def ending(journal: str) -> list[tuple[UUID, str]]:
    """Return attempts and bridges that wait for the proxy to settle them."""
    waiting = EgressNetwork.objects.filter(
        served_by=journal, ending_at__isnull=False, settled_at=None
    )
    return list(waiting.values_list("attempt_id", "pk"))


def settled(attempt_id: UUID, journal: str) -> None:
    """Say that all is stored that this proxy has decided in the networks of an attempt."""
    EgressNetwork.objects.settle(attempt_id, journal)
