"""Pieces of a record as server-sent events, made once for all who read the same.

A page ends at a multiple of a fixed number of events, so that readers who began at different places
soon ask for the same ones. The log is append-only: a page that cannot become longer stays right.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.http.server_sent_events import frame
from runs.agent.record.frames import Kind
from runs.record.reading.rows import Row, fetch
from runs.record.reading.timeline import COLUMNS, items

PAGE_EVENTS = 128
PAGE_BYTES = 64 * 1024
CACHED_BYTES = 8 * 1024**2
"""What a process keeps of pages that somebody may read next."""
_SMALLEST = 512

# One statement, so that events and what the head says of them are of one moment: a record that is
# being removed is there with all of its events, or it is gone.
_EVENTS = f"""
    SELECT * FROM (
        SELECT {COLUMNS}, CASE WHEN kind = {Kind.IO_CHUNK} THEN body END AS bytes,
            length + octet_length(meta) AS size,
            sum(length + octet_length(meta)) OVER (ORDER BY sequence) AS total
        FROM run_event
        WHERE run_number = %(run)s AND sequence BETWEEN %(first)s AND %(near)s
    ) AS counted
    WHERE total - size < {PAGE_BYTES}
"""
_PAGE = f"""
    SELECT head.last_sequence, head.sealed_at IS NOT NULL, head.removed_at, event.*
    FROM run_head AS head LEFT JOIN ({_EVENTS}) AS event ON true
    WHERE head.run_number = %(run)s ORDER BY event.sequence
"""
_NEXT = "SELECT min(sequence) FROM run_event WHERE run_number = %(run)s AND sequence >= %(first)s"
_HEAD_COLUMNS = 3
_SHOWN_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Page:
    """Events behind some place, as they are sent; ``through`` is the place behind them.

    ``final``: it will never hold more. The rest is what the head said when it was read.
    """

    data: bytes
    through: int
    last: int
    final: bool
    sealed: bool
    removed_at: datetime | None
    read_at: float


class Pages:
    """The pages that were read last, for all threads of a process."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[uuid.UUID, int], Page] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def page(self, run_id: uuid.UUID, number: int, after: int, *, since: float) -> Page | None:
        """Return what follows event ``after``; None for a run that has no record.

        As it was at ``since`` (of ``time.monotonic``) or later.
        """
        key = (run_id, after)
        with self._lock:
            known = self._pages.get(key)
            if known is not None and (known.final or known.read_at >= since):
                self._pages.move_to_end(key)
                return known
        page = _read(run_id, number, after)
        if page is not None:
            self._keep(key, page)
        return page

    def _keep(self, key: tuple[uuid.UUID, int], page: Page) -> None:
        with self._lock:
            before = self._pages.pop(key, None)
            if before is not None and before.read_at > page.read_at:
                # Another thread has read it since, and was quicker to keep it.
                self._pages[key] = before
                return
            self._bytes -= 0 if before is None else len(before.data) + _SMALLEST
            self._pages[key] = page
            self._bytes += len(page.data) + _SMALLEST
            while self._bytes > CACHED_BYTES and len(self._pages) > 1:
                _, oldest = self._pages.popitem(last=False)
                self._bytes -= len(oldest.data) + _SMALLEST


PAGES = Pages()


def cut(data: bytes, sent: int, room: int) -> bytes:
    """Return what follows the first ``sent`` bytes of some events, at most ``room`` bytes.

    As many whole events as there is room for, or the next bytes of a larger one.
    """
    end = min(sent + room, len(data))
    if end < len(data):
        whole = data.rfind(b"\n\n", sent, end) + 2
        end = whole if whole > sent + 1 else end
    return data[sent:end]


def _read(run_id: uuid.UUID, number: int, after: int) -> Page | None:
    near = (after // PAGE_EVENTS + 1) * PAGE_EVENTS
    read_at = time.monotonic()
    rows = fetch(_PAGE, {"run": number, "first": after + 1, "near": near})
    if not rows:
        return None
    last, sealed, removed_at = rows[0][:_HEAD_COLUMNS]
    events = [row[_HEAD_COLUMNS:] for row in rows if row[_HEAD_COLUMNS] is not None]
    through = events[-1][0] if events else after
    if not events and near < last and removed_at is None:
        # Numbers are missing here; the record says why, and goes on behind them.
        ((found,),) = fetch(_NEXT, {"run": number, "first": near + 1})
        through = after if found is None else found - 1
    return Page(
        data=_frames(run_id, events),
        through=through,
        last=last,
        final=after < through < last or through == near,
        sealed=sealed,
        removed_at=removed_at,
        read_at=read_at,
    )


def _frames(run_id: uuid.UUID, events: Sequence[Row]) -> bytes:
    shown = items(str(run_id), [row[:_SHOWN_COLUMNS] for row in events])
    return b"".join(_frame(row, item) for row, item in zip(events, shown, strict=True))


def _frame(row: Sequence[Any], item: str) -> bytes:
    sequence, kind, body = row[0], row[1], row[_SHOWN_COLUMNS]
    if kind != Kind.IO_CHUNK:
        return frame("event", item, id=str(sequence))
    content = base64.b64encode(body).decode()
    return frame("output", f'{item[:-1]},"contentBase64":"{content}"}}', id=str(sequence))
