"""Loss: what a record does not hold, and when it is complete."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from runs.agent.record.frames import Kind, Stream
from runs.models import Run, RunHead
from runs.record import store
from runs.record.reading import loss as reading
from tests.conftest import Api
from tests.runs.record_factory import COVERAGE, Source, make_run, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    source.started()
    return source


def path(run: Run) -> str:
    return f"/v1/runs/{run.pk}/loss"


def test_an_intact_record_that_has_ended_is_complete(api: Api, run: Run) -> None:
    record(run)
    assert api.get(path(run)).body == {
        "runId": str(run.pk),
        "droppedEventCount": "0",
        "sequenceGapCount": 0,
        "watchOverflowCount": 0,
        "earlyClose": False,
        "spans": [],
        "spansTruncated": False,
        "complete": True,
        "coverage": COVERAGE,
    }


def test_a_record_that_goes_on_is_not_complete(api: Api, run: Run, source: Source) -> None:
    source.append()
    body = api.get(path(run)).body
    assert (body["complete"], body["spans"]) == (False, [])


def test_an_intact_record_is_answered_from_its_head(api: Api, run: Run) -> None:
    record(run, [b"x"] * 30)
    with CaptureQueriesContext(connection) as queries:
        api.get(path(run))
    assert len(queries) == 2
    assert not any("run_event" in query["sql"] for query in queries)
    assert not any("run_loss" in query["sql"] for query in queries)


def test_lost_events_are_a_gap(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.append()
    source.output(process, b"lost")
    source.waiting.clear()
    source.output(process, b"here")
    source.sealed()
    source.append()
    body = api.get(path(run)).body
    assert body["sequenceGapCount"] == 1
    assert body["complete"] is False
    gap = next(span for span in body["spans"] if span["kind"] == "sequence_gap")
    assert (gap["fromSequence"], gap["toSequence"]) == ("3", "3")
    hole = next(span for span in body["spans"] if span["kind"] == "dropped_event")
    assert (hole["processId"], hole["stream"]) == ("1", "stdout")
    assert (hole["fromOffset"], hole["toOffset"]) == ("0", "4")


def test_what_the_source_dropped_is_summed(api: Api, run: Run, source: Source) -> None:
    source.event(Kind.TELEMETRY_DROPPED, {"count": 4, "what": "fileChange", "reason": "spool-full"})
    source.event(Kind.TELEMETRY_DROPPED, {"count": 2**62, "what": "fileChange"})
    source.event(Kind.TELEMETRY_DROPPED, {"count": 2**62, "what": "fileChange"})
    source.event(Kind.FILE_WATCH_OVERFLOW, {"root": "/w"})
    source.sealed()
    source.append()
    body = api.get(path(run)).body
    assert body["droppedEventCount"] == str(2**63 + 4)
    assert body["watchOverflowCount"] == 1
    assert [span["kind"] for span in body["spans"]] == ["dropped_event"] * 3 + ["watch_overflow"]
    assert body["spans"][0]["reason"] == "fileChange: spool-full"
    assert body["spans"][0]["detectedVia"] == "marker"
    assert body["complete"] is False


def test_a_record_that_its_source_did_not_end_was_closed_early(
    api: Api, run: Run, source: Source
) -> None:
    source.append()
    store.close_early(run.number, reason="container-gone", detail="It was removed.")
    body = api.get(path(run)).body
    assert (body["earlyClose"], body["complete"]) == (True, False)
    assert "container-gone" in body["spans"][0]["reason"]


def test_hidden_input_and_masked_bytes_are_no_loss(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.event(
        Kind.IO_CHUNK,
        {"masked": [[0, 3]]},
        process=process,
        stream=Stream.STDOUT,
        body=b"***",
    )
    source.event(Kind.INPUT_HIDDEN, {"bytes": 6}, process=process, stream=Stream.PTY_INPUT)
    source.sealed()
    source.append()
    assert api.get(path(run)).body["complete"] is True


def test_more_spans_than_are_named_are_counted(
    api: Api, run: Run, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_SPANS", 2)
    for _ in range(3):
        source.event(Kind.FILE_WATCH_OVERFLOW, {"root": "/w"})
    source.append()
    body = api.get(path(run)).body
    assert (len(body["spans"]), body["spansTruncated"], body["watchOverflowCount"]) == (2, True, 3)


@pytest.mark.parametrize("coverage", [{"files": {"state": [], "intervalMs": "x"}}, [], "x", {}])
def test_a_forged_coverage_breaks_nothing(api: Api, run: Run, coverage: object) -> None:
    source = Source(run)
    source.open()
    source.started(coverage=coverage)
    source.append()
    api.get(path(run))


READS = ["timeline", "events/1", "scrollback?stream=stdout", "loss", "changes",
         "export?format=ndjson"]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_a_record_that_retention_removed_is_gone_and_says_since_when(
    api: Api, run: Run, read: str
) -> None:
    record(run)
    RunHead.objects.filter(pk=run.number).update(removed_at=Now())
    answer = api.get(f"/v1/runs/{run.pk}/{read}", expect=410)
    assert answer.body["code"] == "record-removed"
    assert answer.body["removedAt"].endswith("Z")
    assert api.get(f"/v1/runs/{run.pk}").body["status"] == "completed"
