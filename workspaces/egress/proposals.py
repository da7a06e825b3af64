"""What workspaces were refused, as something that their owners may allow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from workspaces.models import Attempt, EgressProposal, Workspace

Proposed: TypeAlias = tuple[str, int | None]
"""A host, and the port; None when only its name was asked for."""

MAX_WAITING = 200
"""Of one workspace: programs in it can ask for any number of names."""
SETTLED = timedelta(seconds=5)
"""After an approval, what was refused just before it is no news."""
Status = EgressProposal.Status


def note_refusals(attempt_id: UUID, refused: Mapping[Proposed, int]) -> None:
    """Count what an attempt's workspace was refused, and propose what is new."""
    from workspaces.blueprint.egress import is_host  # an idle proxy refuses nothing

    with transaction.atomic():
        # Not by a join: it would lock the attempt, too, which workers write to.
        whose = Attempt.objects.filter(pk=attempt_id).values("workspace")
        workspaces = Workspace.objects.filter(pk__in=whose, deleted_at__isnull=True)
        workspace_id = workspaces.select_for_update().values_list("pk", flat=True).first()
        if workspace_id is None:
            return  # it may have been erased
        mine = EgressProposal.objects.filter(workspace_id=workspace_id)
        known = {
            (host, port): pk
            for pk, host, port in mine.filter(host__in=[host for host, _ in refused]).values_list(
                "pk", "host", "port"
            )
        }
        for place, times in refused.items():
            if place in known:
                mine.filter(pk=known[place]).update(**_again(times))
        room = MAX_WAITING - mine.waiting().count()
        new = [place for place in refused if place not in known and is_host(place[0])]
        EgressProposal.objects.bulk_create(
            EgressProposal(
                workspace_id=workspace_id, host=host, port=port, refusals=refused[host, port]
            )
            for host, port in new[: max(0, room)]
        )


def _again(times: int) -> dict[str, object]:
    """Return what is written when something known is refused again."""
    over = Q(status=Status.APPROVED, decided_at__lt=Now() - SETTLED)
    return {
        "refusals": F("refusals") + times,
        "last_refused_at": Now(),
        "status": Case(When(over, then=Value(Status.WAITING)), default=F("status")),
        "decided_at": Case(When(over, then=None), default=F("decided_at")),
    }
