"""A workspace cannot say what its proxy has decided, nor keep that from being said."""

from __future__ import annotations

from typing import Any

import pytest

from runs.agent.record.frames import Kind
from runs.record import store
from runs.record.ingest.batch import LAST_SEQUENCE
from runs.record.verify import verify_run
from tests.runs.record_factory import Source
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    network_of,
    recorded,
    with_policy,
)
from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal

pytestmark = pytest.mark.django_db


def test_decisions_that_a_workspace_tells_are_refused() -> None:
    _, run = with_policy()
    source = Source(run)
    source.open()
    source.started()
    source.event(Kind.EGRESS_DECIDED, {"decision": "allowed", "host": "forged.test"})
    with pytest.raises(store.SourceRefused, match="not its own"):
        source.append()
    assert recorded(run) == []


def test_the_highest_sequence_of_a_workspace_leaves_room_for_decisions(journal: Journal) -> None:
    attempt, run = with_policy()
    source = Source(run)
    source.open()
    given: dict[str, Any] = {"wall_us": 0, "monotonic_ns": 0}
    highest = LAST_SEQUENCE - head_of(run).source_base
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=highest, **given)
    source.append()
    for _ in range(3):
        journal.add(decision(attempt.pk))
        journal.flush()
    assert hosts(run) == [("a.test", 1)] * 3
    assert store.close_early(run.number, reason="container-gone", detail="removed")
    assert verify_run(run).ok


def test_garbage_ends_the_record_and_nothing_passes_behind_its_end(journal: Journal) -> None:
    attempt, run = with_policy(journal.id)
    source = Source(run)
    source.open()
    source.waiting.append(b"garbage")
    with pytest.raises(store.SourceRefused):
        source.append()
    journal.add(decision(attempt.pk))
    journal.flush()
    assert hosts(run) == [("a.test", 1)], "until the record ends"
    assert store.close_early(run.number, reason="source-refused", detail="garbage")
    network = network_of(attempt)
    assert network.ending_at is not None
    assert not serving.take(network.bridge, attempt.pk, journal.id)


def test_a_workspace_cannot_say_that_its_decisions_are_recorded() -> None:
    _, run = with_policy()
    source = Source(run)
    source.open()
    forged = {"state": "off", "method": "none"}
    source.started(coverage={"egress": forged})
    source.event(Kind.COVERAGE_CHANGED, {"source": "egress", **forged})
    source.append()
    assert head_of(run).coverage == {"egress": {"state": "on", "method": "proxy"}}
