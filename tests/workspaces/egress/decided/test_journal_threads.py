"""Threads that come to one journal at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connections

from runs.record.egress_decisions import EgressDecisions
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    recorded,
    with_policy,
)
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import unstored
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.unstored import RecordEnded

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("what", ["another decision", "the end", "a loss"])
def test_threads_that_come_at_once_for_a_new_workspace_all_have_an_effect(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    attempt, run = with_policy()
    met = threading.Barrier(2)

    class Meeting(unstored.Unstored):
        """Made by two threads at once, if two make one."""

        def __init__(self, *given: object) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(0.3)
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(journals, "Unstored", Meeting)
    others: dict[str, Callable[[], None]] = {
        "another decision": partial(journal.add, decision(attempt.pk)),
        "the end": partial(journal.close, attempt.pk),
        "a loss": partial(journal.follow, "gone", attempt.pk),
    }
    with ThreadPoolExecutor(2) as pool:
        refusal = decision(attempt.pk, allowed=False)
        for made in [pool.submit(journal.add, refusal), pool.submit(others[what])]:
            made.result()
    if what == "the end":
        with pytest.raises(RecordEnded):
            journal.add(decision(attempt.pk))
    journal.flush()
    assert len(recorded(run)) == (2 if what == "another decision" else 1)
    assert head_of(run).loss_count == (1 if what == "a loss" else 0)


@pytest.mark.django_db(transaction=True)
def test_a_decision_that_is_being_written_when_its_pass_ends_is_in_this_pass(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    writing, ended, write = threading.Event(), threading.Event(), os.write

    def slowly(descriptor: int, data: bytes) -> int:
        writing.set()
        ended.wait(0.3)
        return write(descriptor, data)

    monkeypatch.setattr("os.write", slowly)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(journal.add, decision(attempt.pk, "b.test"))
        assert writing.wait(LONG_WAIT)
        journal._kept[attempt.pk].store(journal.id, passes=2, patient=True)
        ended.set()
        made.result()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_pass_is_stored_by_one_thread_at_a_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    met, asked, real = threading.Barrier(2), [], EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        asked.append(decided.number)
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.3)
        return real(records, decided, patient=patient)

    def settled() -> None:
        try:
            assert journal.settle(attempt.pk)
        finally:
            connections.close_all()

    monkeypatch.setattr(EgressDecisions, "store", store_)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(settled) for _ in range(2)]:
            each.result()
    assert asked == [1]
    assert hosts(run) == [("a.test", 1)]
