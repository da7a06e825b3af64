"""Runs as OpenTelemetry spans, read by OpenTelemetry's own messages."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from runs.agent.record.frames import Kind
from runs.models import Run
from tests.conftest import Api
from tests.runs.record_factory import START_US, Source, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    return source


def spans(api: Api, run: Run) -> tuple[Any, list[Any]]:
    """Return the span of the run and those of its processes; ids are sound and unique."""
    content = api.get(f"/v1/runs/{run.pk}/export?format=otlp").content.decode()
    assert content.count("\n") == 1
    request = json_format.Parse(content, ExportTraceServiceRequest())
    # OTLP writes ids in hexadecimal, which protobuf's own JSON reads as if it were base64.
    told = json_format.MessageToDict(request)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    root, *processes = told
    assert {span["traceId"] for span in told} == {run.pk.hex}
    ids = [span["spanId"] for span in told]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {16}
    assert {span["parentSpanId"] for span in processes} <= set(ids)
    assert "parentSpanId" not in root
    return root, processes


def attributes(span: Any) -> dict[str, Any]:
    return {each["key"]: each["value"] for each in span["attributes"]}


def test_processes_are_spans_below_their_parents_and_the_run(
    api: Api, run: Run, source: Source
) -> None:
    parent = source.process(["/bin/sh", "-c", "x"])
    child = source.process(["cat", "é"], leader=False, parent=parent)
    source.exited(child)
    source.exited(parent, code=3)
    source.append()

    root, (first, second) = spans(api, run)

    assert (root["name"], "endTimeUnixNano" in root) == ("run shell", False)
    assert first["parentSpanId"] == root["spanId"]
    assert second["parentSpanId"] == first["spanId"]
    assert (first["name"], second["name"]) == ("sh", "cat")
    began, ended = START_US * 1000 + 1_000_000, START_US * 1000 + 4_000_000
    assert first["startTimeUnixNano"] == str(began)
    assert first["endTimeUnixNano"] == str(ended)
    assert attributes(first)["process.exit.code"] == {"intValue": "3"}
    words = attributes(second)["process.command_args"]["arrayValue"]["values"]
    assert words == [{"stringValue": "cat"}, {"stringValue": "é"}]
    assert first["status"] == {"code": "STATUS_CODE_ERROR"}
    assert "status" not in second


def test_what_goes_on_has_no_end(api: Api, run: Run, source: Source) -> None:
    source.process()
    source.append()
    _, (process,) = spans(api, run)
    assert "endTimeUnixNano" not in process
    assert "status" not in process


@pytest.mark.parametrize("parent", [1, 2, 3, 9, 2**31])
def test_a_forged_parent_makes_no_circle_and_no_orphan(
    api: Api, run: Run, source: Source, parent: int
) -> None:
    source.process(parent=parent)
    source.process(parent=1)
    source.process()
    source.append()
    root, (first, second, _) = spans(api, run)
    assert first["parentSpanId"] == root["spanId"]
    assert second["parentSpanId"] == first["spanId"]


def test_whatever_a_workspace_tells_it_is_one_request(api: Api, run: Run, source: Source) -> None:
    hostile = ['a\u2028"\\\n\x1b[2J\x00,{}', "\udc80".encode("utf-8", "replace").decode(), ""]
    source.process(hostile, pid=2**70, cwd=hostile[0], name=hostile[0])
    source.process([])
    meta = {"code": -(2**70), "signal": hostile[0]}
    source.event(Kind.PROCESS_EXITED, meta, process=1, wall_us=2**63 - 1)
    source.event(Kind.PROCESS_EXITED, {"code": 1}, process=5, wall_us=0)
    source.append()
    _, processes = spans(api, run)
    assert len(processes) == 2
    assert int(processes[0]["endTimeUnixNano"]) == 2**64 - 1


def test_a_run_that_failed_is_an_error(api: Api) -> None:
    run = make_run(status=Run.Status.FAILED, error_code="run-lost", finished_at=timezone.now())
    root, _ = spans(api, run)
    assert root["status"] == {"code": "STATUS_CODE_ERROR", "message": "run-lost"}
