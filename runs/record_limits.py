"""How much room the records of one owner's runs may take."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, Subquery, Sum

from controlplane.owner_limits import OwnerLimit
from runs.models import Run, RunHead


def _record_bytes(owner_user_id: str) -> int:
    """Return how many bytes the records take that an owner has now; removed ones take none."""
    head = RunHead.objects.filter(run_number=OuterRef("number"), removed_at__isnull=True)
    stored: dict[str, Any] = (
        Run.objects.filter(owner_user_id=owner_user_id)
        .annotate(stored=Subquery(head.values("stored_bytes")))
        .aggregate(total=Sum("stored"))
    )
    return int(stored["total"] or 0)


RECORD_BYTES = OwnerLimit(
    setting="OWNER_MAX_RECORD_BYTES",
    name="recordBytes",
    code="too-many-record-bytes",
    what="bytes of records",
    present=_record_bytes,
)
"""Looked at when a recorded run is made; what runs already is recorded to its end."""
