"""Events that streams of runs, workspaces and owners have in common."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from datetime import datetime
from typing import Any

from rest_framework.utils.encoders import JSONEncoder

from controlplane.http.server_sent_events import frame
from controlplane.spelling import format_timestamp
from workspaces.models import Workspace
from workspaces.presentation import present_workspaces
from workspaces.serializers import WorkspaceSummarySerializer


def json_frame(event: str, members: Any, *, id: str | None = None) -> bytes:
    """Return an event whose data is JSON."""
    return frame(event, json.dumps(members, cls=JSONEncoder, ensure_ascii=False), id=id)


def removed_frame(removed_at: datetime, *, after: str, **members: str) -> bytes:
    """Return the event ``resync`` for a record that retention has removed."""
    told = {
        "reason": "record-removed",
        "detail": "The record of this run was removed by retention.",
        "after": after,
        "removedAt": format_timestamp(removed_at),
    }
    return json_frame("resync", {**members, **told})


def shown_workspaces(rows: list[Workspace]) -> list[Any]:
    """Return what ``status`` tells of each workspace: the same as a list of them."""
    return [WorkspaceSummarySerializer(members).data for members in present_workspaces(rows)]


class Statuses:
    """How workspaces stood when somebody asked last, for all threads of a process."""

    KEPT = 1_000

    def __init__(self) -> None:
        self._known: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Any, since: float) -> Any:
        """Return what was found at ``since`` or later; None when nobody has looked since then."""
        with self._lock:
            found_at, found = self._known.get(key, (-1.0, None))
        return found if found_at >= since else None

    def keep(self, key: Any, found_at: float, found: Any) -> None:
        """Keep what was found by a look that began at ``found_at``."""
        with self._lock:
            self._known[key] = (found_at, found)
            self._known.move_to_end(key)
            while len(self._known) > self.KEPT:
                self._known.popitem(last=False)
