"""How much room the records of one owner's runs may take."""

from __future__ import annotations

from controlplane.owner_limits import OwnerLimit
from runs.record import room

RECORD_BYTES = OwnerLimit(
    setting="OWNER_MAX_RECORD_BYTES",
    name="recordBytes",
    code="too-many-record-bytes",
    what="bytes of records",
    present=room.taken_by,
)
"""Looked at when a recorded run is made; what runs already is recorded to its end."""
