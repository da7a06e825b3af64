"""A database that does not take what a journal stores."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from runs.record.egress_decisions import EgressDecisions
from workspaces.egress.decided.keeping import Pass
from workspaces.models import Attempt


class Refusing:
    """A database that refuses records, and the attempts for which it was asked.

    ``error`` is what it answers, and ``patient`` whether who asked last would have waited.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[UUID] = []
        self.refused: set[UUID] = set()
        self.error: Exception = OperationalError("the database is away")
        self.patient: bool | None = None
        real = EgressDecisions.store

        def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
            self.asked.append(decided.attempt_id)
            self.patient = patient
            if decided.attempt_id in self.refused:
                raise self.error
            return real(records, decided, patient=patient)

        monkeypatch.setattr(EgressDecisions, "store", store_)

    def asked_now(self) -> list[UUID]:
        """Return for which attempts it was asked since the last look."""
        asked, self.asked = self.asked, []
        return asked

    def hold(self, attempts: list[Attempt]) -> None:
        """Have somebody else write to the records of these."""
        self.refused = {attempt.pk for attempt in attempts}
        self.error = OperationalError("canceling statement due to lock timeout")
        self.error.__cause__ = LockNotAvailable()
