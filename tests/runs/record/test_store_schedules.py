"""Random schedules of delivery: what is stored and what is declared missing is what was told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.models import RunEvent, RunLoss
from runs.record import store
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Delivery:
    """Some contents of the source from one on; what comes of the transaction; who lost some."""

    start: int
    count: int
    lost: frozenset[int]
    committed: bool


deliveries = st.builds(
    Delivery,
    st.integers(0, 20),
    st.integers(0, 12),
    st.frozensets(st.integers(0, 20), max_size=3),
    st.booleans(),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schedule=st.lists(deliveries, max_size=12), sizes=st.lists(st.integers(0, 9), max_size=16))
def test_stored_and_declared_missing_is_everything_that_was_told(
    schedule: list[Delivery], sizes: list[int]
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    for size in sizes:
        source.output(process, b"x" * size)
    for delivery in schedule:
        chosen = range(delivery.start, delivery.start + delivery.count)
        contents = [
            source.contents[number]
            for number in chosen
            if number < len(source.contents) and number not in delivery.lost
        ]
        with transaction.atomic():
            store.append(run.number, source.source_id, contents)
            transaction.set_rollback(not delivery.committed)
    # The end is told with totals and always arrives, however much of the rest was lost.
    told = len(source.contents) + 1
    source.sealed(streams=[{"process": process, "stream": "stdout", "bytes": sum(sizes)}])
    store.append(run.number, source.source_id, source.contents[-1:])

    stored = set(RunEvent.objects.filter(run_number=run.number).values_list("sequence", flat=True))
    spans = RunLoss.objects.filter(run_number=run.number)
    missing = {
        number
        for low, high in spans.filter(kind="sequence_gap").values_list(
            "from_sequence", "to_sequence"
        )
        for number in range(low or 0, (high or 0) + 1)
    }
    assert stored | missing == set(range(1, told + 1))
    assert not stored & missing
    chunks = RunEvent.objects.filter(run_number=run.number, kind=4)
    there = {
        at
        for offset, length in chunks.values_list("stream_offset", "length")
        for at in range(offset, offset + length)
    }
    declared = {
        at
        for low, high in spans.exclude(from_offset=None).values_list("from_offset", "to_offset")
        for at in range(low or 0, high or 0)
    }
    assert there | declared == set(range(sum(sizes)))
    assert not there & declared
    assert verify_run(run).ok
