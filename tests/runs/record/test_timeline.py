"""The timeline: pages by sequence, kinds, summaries, and single events."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.agent.record.frames import KIND_NAMES, STREAM_NAMES, Kind, Stream
from runs.models import Run
from runs.record.chain import genesis
from runs.record.reading import timeline
from tests.conftest import Api
from tests.factories import make_job
from tests.runs.executable import make_executable
from tests.runs.record_factory import START_US, Source, make_run, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    return source


def path(run: Run, query: str = "") -> str:
    return f"/v1/runs/{run.pk}/timeline?{query}"


def items(api: Api, run: Run, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(path(run, query)).body["items"]
    return found


def test_a_run_without_events_has_an_empty_timeline(api: Api, run: Run) -> None:
    assert api.get(path(run)).body == {"items": []}


def test_events_come_in_order_with_all_that_the_timeline_promises(api: Api, run: Run) -> None:
    record(run, [b"hello\n"])
    found = items(api, run)
    assert [item["kind"] for item in found] == [
        "recordStarted",
        "processStarted",
        "ioChunk",
        "processStreamClosed",
        "processExited",
        "recordSealed",
    ]
    assert [item["sequence"] for item in found] == list("123456")
    assert found[2] == {
        "eventId": f"{run.pk}:3",
        "sequence": "3",
        "kind": "ioChunk",
        "occurredAt": "3000000",
        "observedAt": "2025-06-15T15:06:40.003Z",
        "summary": "stdout: 6 bytes at 0",
        "ref": {"stream": "stdout", "streamKind": 2, "byteCount": "6", "streamOffset": "0"},
        "processId": "1",
        "captureMethod": 1,
        "confidence": 1,
    }
    assert found[1]["summary"] == "/bin/true"
    assert found[1]["ref"]["argv"] == ["/bin/true"]
    assert found[4]["summary"] == "exited with code 0"
    assert "processId" not in found[0]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 5000])
def test_every_event_is_read_exactly_once(api: Api, run: Run, limit: int) -> None:
    record(run, [b"a", b"b", b"c"])
    found, query = [], f"limit={limit}"
    for _ in range(20):
        body = api.get(path(run, query)).body
        assert len(body["items"]) <= limit
        found += [item["sequence"] for item in body["items"]]
        if "nextFromSequence" not in body:
            break
        query = f"limit={limit}&fromSequence={body['nextFromSequence']}"
    assert found == list("12345678")


def test_bounds_are_inclusive(api: Api, run: Run) -> None:
    record(run, [b"a", b"b", b"c"])
    shown = items(api, run, "fromSequence=3&toSequence=5")
    assert [item["sequence"] for item in shown] == ["3", "4", "5"]
    assert api.get(path(run, "toSequence=2")).body.keys() == {"items"}
    assert items(api, run, "fromSequence=100") == []
    assert items(api, run, f"fromSequence={2**63 - 1}&toSequence={2**63 - 1}") == []
    assert len(items(api, run, "fromSequence=0")) == 8


def test_a_page_goes_on_behind_a_hole(api: Api, run: Run, source: Source) -> None:
    for sequence in (1, 2, 9_000, 9_001, 2**40):
        source.event(Kind.SIGNAL_SENT, {}, sequence=sequence)
    source.append()
    found, query = [], "limit=2"
    while True:
        body = api.get(path(run, query)).body
        found.append([item["sequence"] for item in body["items"]])
        if "nextFromSequence" not in body:
            break
        query = f"limit=2&fromSequence={body['nextFromSequence']}"
    assert found == [["1", "2"], ["9000", "9001"], [str(2**40)]]
    lines = api.get(f"/v1/runs/{run.pk}/export?format=ndjson").content.splitlines()
    assert len([line for line in lines if b'"type":"event"' in line]) == 5


def test_kinds_choose_events(api: Api, run: Run) -> None:
    record(run, [b"a", b"b"])
    shown = items(api, run, "kinds=processExited, recordStarted ,recordStarted")
    assert [item["kind"] for item in shown] == ["recordStarted", "processExited"]
    body = api.get(path(run, "kinds=ioChunk&limit=1")).body
    assert [item["sequence"] for item in body["items"]] == ["3"]
    assert body["nextFromSequence"] == "4"
    shown = items(api, run, "kinds=ioChunk,recordSealed")
    assert [item["sequence"] for item in shown] == ["3", "4", "7"]
    assert items(api, run, "kinds=fileChange") == []
    body = api.get(path(run, "kinds=recordStarted,recordSealed&limit=1")).body
    assert body["nextFromSequence"] == "7"


def test_a_page_of_rare_kinds_and_chunks_reads_a_bounded_part(
    api: Api, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_WITH_CHUNKS", timeline._WITH_CHUNKS.replace("20000", "3"))
    monkeypatch.setattr(timeline, "_BEHIND_SCANNED", timeline._BEHIND_SCANNED.replace("20000", "3"))
    record(run, [b"a"] * 6)
    found, query, empty = [], "kinds=ioChunk,recordSealed", 0
    while True:
        body = api.get(path(run, query)).body
        found += [item["sequence"] for item in body["items"]]
        empty += not body["items"]
        if "nextFromSequence" not in body:
            break
        query = f"kinds=ioChunk,recordSealed&fromSequence={body['nextFromSequence']}"
    assert found == ["3", "4", "5", "6", "7", "8", "11"]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("fromSequence=-1", "fromSequence"),
        ("fromSequence=", "fromSequence"),
        ("fromSequence=0x10", "fromSequence"),
        ("fromSequence=1e3", "fromSequence"),
        ("fromSequence=+1", "fromSequence"),
        ("fromSequence=%201", "fromSequence"),
        ("fromSequence=1_0", "fromSequence"),
        ("fromSequence=%D9%A3", "fromSequence"),
        ("fromSequence=9223372036854775808", "fromSequence"),
        ("fromSequence=" + "9" * 5000, "fromSequence"),
        ("fromSequence=1&fromSequence=2", "fromSequence"),
        ("toSequence=-1", "toSequence"),
        ("toSequence=9223372036854775808", "toSequence"),
        ("fromSequence=5&toSequence=4", "toSequence"),
        ("limit=0", "limit"),
        ("limit=5001", "limit"),
        ("limit=-1", "limit"),
        ("limit=5x", "limit"),
        ("kinds=", "kinds"),
        ("kinds=,", "kinds"),
        ("kinds=ioChunk,", "kinds"),
        ("kinds=ioChunk,nothing", "kinds"),
        ("kinds=4", "kinds"),
        ("kinds=unknown", "kinds"),
        ("from=1", "from"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, run: Run, query: str, parameter: str) -> None:
    record(run)
    assert set(api.get(path(run, query), expect=400).codes) == {parameter}


def test_a_misspelt_kind_gets_a_suggestion(api: Api, run: Run) -> None:
    (fault,) = api.get(path(run, "kinds=iochunk"), expect=400).body["errors"]
    assert 'Did you mean "ioChunk"?' in fault["detail"]
    assert fault["code"] == "not-allowed"


def test_all_wrong_parameters_are_told_at_once(api: Api, run: Run) -> None:
    query = "fromSequence=x&toSequence=-2&limit=0&kinds=a,b&other=1&ownerUserId="
    answer = api.get(path(run, query), expect=400)
    assert set(answer.codes) == {
        "fromSequence", "toSequence", "limit", "kinds", "other", "ownerUserId"
    }  # fmt: skip


def test_a_page_costs_the_same_number_of_queries_wherever_it_is(api: Api, run: Run) -> None:
    record(run, [b"x"] * 50)
    counts = set()
    for query in ("limit=5", "limit=5&fromSequence=40", "limit=50"):
        with CaptureQueriesContext(connection) as queries:
            api.get(path(run, query))
        counts.add(len(queries))
    assert len(counts) == 1


def test_masked_ranges_are_told(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    body = b"key=******"
    source.event(
        Kind.IO_CHUNK, {"masked": [[4, 10]]}, process=process, stream=Stream.STDOUT, body=body
    )
    source.append()
    assert items(api, run)[1]["ref"] == {
        "stream": "stdout", "streamKind": 2, "byteCount": "10", "streamOffset": "0",
        "masked": [[4, 10]],
    }  # fmt: skip


def test_a_process_is_told_in_the_words_of_other_clients_too(
    api: Api, run: Run, source: Source
) -> None:
    latin = {"text": "caf\ufffd", "base64": "Y2Fm6Q=="}
    source.event(Kind.PROCESS_STARTED, {"argv": ["/bin/ls", "-l", latin]}, process=1)
    source.event(Kind.PROCESS_EXITED, {"code": 3, "reason": "exited", "durationUs": 41}, process=1)
    source.event(Kind.PROCESS_EXITED, {"code": None, "signal": "SIGKILL"}, process=2)
    source.event(Kind.PROCESS_STARTED, {"argv": ["x"], "executable": "told", "args": 1}, process=3)
    source.event(Kind.PROCESS_STARTED, {"argv": []}, process=4)
    source.append()
    refs = [item["ref"] for item in items(api, run)]
    events = [api.get(f"/v1/runs/{run.pk}/events/{number}").body for number in range(1, 6)]
    assert refs == [event["payload"] for event in events]
    started, exited, killed, forged, nothing = refs
    assert (started["executable"], started["args"]) == ("/bin/ls", ["-l", "caf\ufffd"])
    assert started["argv"][2] == latin
    assert (exited["exitCode"], exited["code"], exited["durationMicros"]) == (3, 3, "41")
    assert "exitCode" not in killed
    assert (forged["executable"], forged["args"]) == ("told", 1)
    assert nothing == {"argv": []}


@pytest.mark.parametrize(
    "stream",
    [Stream.STDIN, Stream.STDOUT, Stream.STDERR, Stream.PTY_INPUT, Stream.PTY_OUTPUT],
)
def test_a_stream_has_its_number_beside_its_name(
    api: Api, run: Run, source: Source, stream: int
) -> None:
    source.output(source.process(), b"x", stream=stream)
    source.append()
    ref = items(api, run)[1]["ref"]
    assert (ref["stream"], ref["streamKind"]) == (STREAM_NAMES[stream], stream)


def test_an_event_names_the_runtime_that_it_comes_from(api: Api) -> None:
    attempt = make_job().attempt
    for run in (Run.objects.get(pk=attempt.run_id), make_executable(attempt=attempt)):
        record(run)
        event = api.get(f"/v1/runs/{run.pk}/events/1").body
        assert event["runtimeId"] == str(attempt.run_id)


FORGED = [
    b"{",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"NaN",
    b'{"argv":NaN}',
    b'{"argv":5,"text":[]}',
    b'{"argv":[{"text":5},{},null]}',
    b'{"text":"\\ud800"}',
    b'{"reason":"\\u0000\\u001b[2J"}',
    b"[" * 5000,
    b"[" * 1500 + b"]" * 1500,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"n":' + b"9" * 6000 + b"}",
    b'{"n":1e999}',
    b'{"channel":9%s,"kind":9%s,"port":9%s,"bytes":9%s,"code":9%s}' % ((b"9" * 6000,) * 5),
    b'{"origin":[],"channel":{"a":1},"kind":["x"],"argv":{}}',
    b'{"origin":{"user":{"text":7},"address":["x"],"port":{},"client":1e9,"key":{"text":"\\u0000"}}}',
    b'{"channel":"' + b"x" * 400 + b'","host":"\\u001b[2J","sentBytes":-1,"reason":[1]}',
    b'{"a":1,"a":2}',
    b'{"step":"x","message":{"a":1},"state":[]}',
]


@pytest.mark.parametrize("meta", FORGED, ids=range(len(FORGED)))
def test_what_a_workspace_forged_is_shown_and_breaks_nothing(
    api: Api, run: Run, source: Source, meta: bytes
) -> None:
    for kind in [*KIND_NAMES, 999, 40_000, 65_535]:
        # One ends the record, the other is refused.
        if kind not in (Kind.RECORD_SEALED, Kind.EGRESS_DECIDED):
            source.event(kind, meta, process=1, stream=7 if kind == 4 else 2, body=b"\xff")
    source.append()
    found = items(api, run)
    assert len(found) == len(KIND_NAMES) + 1
    assert [item["kind"] for item in found[-3:]] == ["unknown"] * 3
    for item in found:
        api.get(f"/v1/runs/{run.pk}/events/{item['sequence']}")


@pytest.mark.parametrize("wall_us", [-(2**63), -1, 0, 2**63 - 1])
def test_clocks_may_be_anything(api: Api, run: Run, source: Source, wall_us: int) -> None:
    source.event(Kind.SIGNAL_SENT, {}, wall_us=wall_us, monotonic_ns=2**64 - 1)
    source.append()
    assert items(api, run)[0]["observedAt"].endswith("Z")
    assert api.get(f"/v1/runs/{run.pk}/events/1").body["observedAtMicros"] == str(wall_us)


def test_a_long_meta_is_left_to_the_single_event(api: Api, run: Run, source: Source) -> None:
    source.process(["x" * 40_000])
    source.append()
    (item,) = items(api, run)
    assert item["ref"]["omitted"] is True
    assert int(item["ref"]["byteCount"]) > 40_000
    assert api.get(f"/v1/runs/{run.pk}/events/1").body["payload"]["argv"] == ["x" * 40_000]


SUMMARIES: list[tuple[int, dict[str, Any], str]] = [
    (Kind.RECORD_STARTED, {"mode": "boot"}, "recording starts: boot"),
    (Kind.PROCESS_STARTED, {"argv": ["ls", {"text": "�", "base64": "/w=="}]}, "ls �"),
    (Kind.PROCESS_STARTED, {"argv": ["sh", "-c", "\n a\n\tb \x1b[2J\n"]}, "sh -c a b \ufffd[2J"),
    (Kind.PROCESS_STARTED, {"argv": ["x"], "startFailed": "no"}, "x could not be started: no"),
    (
        Kind.RECORD_STARTED,
        {
            "mode": "interactive",
            "origin": {
                "address": "203.0.113.7",
                "port": 50123,
                "client": "OpenSSH_9.9",
                "user": "ad",
                "key": "SHA:1",
            },
        },
        "recording starts: interactive, ad from 203.0.113.7 port 50123 with OpenSSH_9.9, key SHA:1",
    ),
    (
        Kind.PROCESS_STARTED,
        {"argv": ["bash", "-l"], "kind": "shell", "channel": 3},
        "shell: bash -l (channel 3)",
    ),
    (
        Kind.PROCESS_STARTED,
        {"argv": ["bash", "-c", "x" * 500], "kind": "exec", "channel": 3},
        f"exec: bash -c {'x' * 173}… (channel 3)",
    ),
    (
        Kind.FORWARD_OPENED,
        {"channel": 4, "host": "localhost", "port": 8080},
        "forward opened: localhost port 8080 (channel 4)",
    ),
    (
        Kind.FORWARD_CLOSED,
        {
            "channel": 4,
            "host": "::1",
            "port": 80,
            "sentBytes": 7,
            "receivedBytes": 9,
            "reason": "eof",
        },
        "forward closed: ::1 port 80 (channel 4), 7 bytes sent, 9 received: eof",
    ),
    (Kind.PROCESS_EXITED, {"code": 3, "reason": "exited"}, "exited with code 3"),
    (
        Kind.PROCESS_EXITED,
        {"code": None, "signal": "SIGKILL", "reason": "signaled"},
        "signaled by SIGKILL",
    ),
    (
        Kind.PROCESS_EXITED,
        {"code": None, "signal": "SIGTERM", "reason": "timeout"},
        "timeout, by SIGTERM",
    ),
    (Kind.PROCESS_STREAM_CLOSED, {"reason": "eof"}, "stdout closed at 9: eof"),
    (Kind.TERMINAL_RESIZED, {"columns": 80, "rows": 24}, "terminal of 80 columns and 24 rows"),
    (Kind.INPUT_HIDDEN, {"bytes": 8}, "8 bytes of input not recorded"),
    (
        Kind.TELEMETRY_DROPPED,
        {"bytes": 5, "toOffset": 14, "reason": "spool-full"},
        "stdout: 5 bytes dropped at 9: spool-full",
    ),
    (Kind.FILE_CHANGE, {"change": "added", "path": "a b"}, "added: a b"),
    (Kind.FILE_CHANGE, {"change": "renamed", "path": "b", "oldPath": "a"}, "renamed: a → b"),
    (Kind.FILE_WATCH_OVERFLOW, {"root": "/w"}, "file changes missed below /w"),
    (
        Kind.FILE_SNAPSHOT_COMPLETED,
        {"root": "/w", "when": "end", "files": 3},
        "snapshot at the end of /w: 3 files",
    ),
    (Kind.FILE_DIFF_AVAILABLE, {"added": 1, "deleted": 2}, "changes: 1 added, 2 deleted"),
    (Kind.FILE_DIFF_AVAILABLE, {"truncated": True}, "changes: none (truncated)"),
    (
        Kind.NETWORK_SOURCE_OBSERVED,
        {"protocol": "tcp", "peer": "10.0.0.1", "port": 443, "state": "open"},
        "tcp 10.0.0.1 port 443, open",
    ),
    (
        Kind.COVERAGE_CHANGED,
        {"source": "files", "state": "limited", "reason": "too many"},
        "files now limited: too many",
    ),
    (Kind.SIGNAL_SENT, {"signal": "SIGTERM", "reason": "cancelled"}, "SIGTERM sent: cancelled"),
    (
        Kind.RUNTIME_STATE_CHANGED,
        {"state": "setup", "step": {"name": "install"}},
        "setup: install",
    ),
    (
        Kind.FILE_ACCESSED,
        {"action": "write", "path": "/a", "size": 2, "by": "usr_x"},
        "files: write /a, 2 bytes, by usr_x",
    ),
    (
        Kind.FILE_ACCESSED,
        {"action": "move", "path": "/" + "x" * 500, "to": "/b", "failed": "file-in-use"},
        f"files: failed (file-in-use): move /{'x' * 164}…",
    ),
    (77, {"anything": 1}, "an event of an unknown kind"),
    (Kind.FILE_CHANGE, {"change": "added", "path": "x" * 500}, f"added: {'x' * 192}…"),
]


@pytest.mark.parametrize(("kind", "meta", "line"), SUMMARIES)
def test_each_kind_has_a_line(
    api: Api, run: Run, source: Source, kind: int, meta: dict[str, Any], line: str
) -> None:
    source.event(kind, meta, process=1, stream=Stream.STDOUT, offset=9)
    source.append()
    assert items(api, run)[-1]["summary"] == line


def test_a_drop_without_a_stream_counts_events(api: Api, run: Run, source: Source) -> None:
    told = {"count": 4, "what": "fileChange", "reason": "spool-full"}
    source.event(Kind.TELEMETRY_DROPPED, told)
    source.append()
    assert items(api, run)[0]["summary"] == "4 fileChange events dropped: spool-full"


def test_an_event_shows_everything_that_is_known_of_it(api: Api, run: Run) -> None:
    contents = record(run, [b"\xff\0"]).contents
    body = api.get(f"/v1/runs/{run.pk}/events/3").body
    ingested = body.pop("ingestedAt")
    head = genesis(run.pk)
    for content in contents[:3]:
        head = hashlib.sha256(head + content).digest()
    assert ingested.endswith("Z")
    assert body == {
        "eventId": f"{run.pk}:3",
        "runId": str(run.pk),
        "runtimeId": str(run.attempt.run_id) if run.attempt else None,
        "schemaVersion": 1,
        "sequence": "3",
        "observedAt": "2025-06-15T15:06:40.003Z",
        "observedAtMicros": str(START_US + 3000),
        "monotonicTimestamp": "3000000",
        "processId": "1",
        "stream": "stdout",
        "streamOffset": "0",
        "captureMethod": 1,
        "confidence": 1,
        "payloadCase": "ioChunk",
        "payload": {"stream": "stdout", "streamKind": 2, "byteCount": "2", "streamOffset": "0"},
        "contentBase64": base64.b64encode(b"\xff\0").decode(),
        "link": head[:8].hex(),
    }
    assert api.get(f"/v1/runs/{run.pk}/events/1").body["payload"]["runId"] == str(run.pk)


@pytest.mark.parametrize("sequence", ["0", "7", str(2**63 - 1)])
def test_an_event_that_is_not_there_is_404(api: Api, run: Run, sequence: str) -> None:
    record(run)
    answer = api.get(f"/v1/runs/{run.pk}/events/{sequence}", expect=404)
    assert answer.body["code"] == "event-not-found"


@pytest.mark.parametrize(
    "sequence", ["x", "-1", "1.0", "0x1", "%201", "9223372036854775808", "9" * 3000, "%00", "%F0"]
)
def test_what_is_no_sequence_is_a_fault(api: Api, run: Run, sequence: str) -> None:
    answer = api.get(f"/v1/runs/{run.pk}/events/{sequence}", expect=400)
    assert answer.codes == {"sequence": "invalid"}


def test_the_fast_and_the_slow_way_to_tell_of_a_chunk_agree(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process()
    for meta in (b"", b"{}"):
        source.event(
            Kind.IO_CHUNK, meta, process=process, stream=Stream.STDERR, offset=5, body=b"abc"
        )
    source.append()
    fast, slow = ({**item, "eventId": "", "sequence": ""} for item in items(api, run)[1:])
    for name in ("occurredAt", "observedAt"):
        del fast[name], slow[name]
    assert fast == slow
    assert json.dumps(fast, sort_keys=True) == json.dumps(slow, sort_keys=True)
