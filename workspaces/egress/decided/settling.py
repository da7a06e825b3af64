"""Settles the networks whose records are about to end; none that cannot be keeps another waiting.

Each is tried for a moment first. One that fails, as somebody holds its record, say, is tried again
by other threads, which may wait longer, and ever less often.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import connections

from workspaces.egress.decided.journal import Journal

THREADS = 4
"""As many for those that are tried for the first time, and for all others."""
PAUSE_SECONDS = (0.3, 10.0)
"""After how long one is tried again: first, and at the most."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Try:
    done: Future[None]
    pause: float = PAUSE_SECONDS[0]
    ended_at: float | None = None


class Settling:
    """To be called from one thread; what it starts runs in others."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._first = ThreadPoolExecutor(THREADS, "egress settling")
        self._again = ThreadPoolExecutor(THREADS, "egress settling again")
        self._tries: dict[UUID, _Try] = {}

    def go_on(self, attempt_ids: Collection[UUID]) -> None:
        """Settle these, all that wait for it at the moment; returns at once."""
        now = time.monotonic()
        kept = {who: each for who, each in self._tries.items() if who in attempt_ids}
        under_way = {who: each for who, each in self._tries.items() if not each.done.done()}
        self._tries = {**kept, **under_way}
        for who in attempt_ids:
            known = self._tries.get(who)
            if known is None:
                self._tries[who] = _Try(self._first.submit(self._settle, who, patient=False))
            elif known.done.done():
                self._try_again(who, known, now)

    def _try_again(self, who: UUID, known: _Try, now: float) -> None:
        if known.ended_at is None:
            known.ended_at = now
        if now - known.ended_at >= known.pause:
            known.done = self._again.submit(self._settle, who, patient=True)
            known.pause, known.ended_at = min(2 * known.pause, PAUSE_SECONDS[1]), None

    def _settle(self, attempt_id: UUID, *, patient: bool) -> None:
        try:
            self._journal.settle(attempt_id, patient=patient)
        except Exception as error:
            log.warning(
                "egress_not_settled", attempt_id=str(attempt_id), reason=type(error).__name__
            )
        finally:
            connections.close_all()  # it happens once in the life of a workspace

    def stop(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        for pool in (self._first, self._again):
            pool.shutdown(cancel_futures=True)
