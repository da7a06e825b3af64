"""The store: exactly once, holes declared, sealed and settled."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from controlplane.metrics import counting
from controlplane.metrics.families import (
    RECORD_BATCHES,
    RECORD_BYTES,
    RECORD_EVENTS,
    RECORD_LOSSES,
)
from runs.agent.record.frames import Kind, Method, Stream, decode
from runs.models import (
    Run,
    RunChange,
    RunCheckpoint,
    RunEvent,
    RunHead,
    RunLoss,
    RunProcess,
)
from runs.record import seal, signatures, store
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


def head_of(run: Run) -> RunHead:
    return RunHead.objects.get(pk=run.number)


def losses_of(run: Run) -> list[tuple[Any, ...]]:
    return list(
        RunLoss.objects.filter(run_number=run.number)
        .order_by("position")
        .values_list("kind", "from_sequence", "to_sequence", "count", "detected_via")
    )


def stored_contents(run: Run) -> list[RunEvent]:
    return list(RunEvent.objects.filter(run_number=run.number).order_by("sequence"))


def test_every_byte_of_every_event_is_stored_and_chained() -> None:
    run = make_run()
    source = record(run, [bytes(range(256)), b"", b"\0" * 70_000])
    events = stored_contents(run)
    assert [event.sequence for event in events] == list(range(1, len(source.contents) + 1))
    head = hashlib.sha256(b"svc-run-record-v1\0" + run.pk.bytes).digest()
    for event, content in zip(events, source.contents, strict=True):
        told = decode(content)
        head = hashlib.sha256(head + content).digest()
        assert bytes(event.link) == head[:8]
        assert (event.kind, event.process_number, event.stream) == (
            told.kind,
            told.process,
            told.stream,
        )
        assert (event.stream_offset, event.wall_us, event.monotonic_ns) == (
            told.offset,
            told.wall_us,
            told.monotonic_ns,
        )
        assert (bytes(event.meta), bytes(event.body)) == (told.meta, told.body)
        assert event.length == len(told.body)
        assert (event.method, event.confidence) == (told.method, told.confidence)
    assert bytes(head_of(run).chain_head) == head
    assert head_of(run).stream_bytes == {"1/2": 256 + 70_000}
    assert losses_of(run) == []


def test_the_end_of_a_record_seals_it_and_settles_its_run() -> None:
    run = make_run()
    record(run, code=0)
    run.refresh_from_db()
    head = head_of(run)
    assert (run.status, run.exit_code, run.error_code) == ("completed", 0, "")
    assert run.finished_at is not None
    assert head.sealed_at is not None
    told = json.loads(bytes(head.seal or b""))
    assert told["runId"] == str(run.pk)
    assert told["chainHead"] == bytes(head.chain_head).hex()
    public = seal.public_key()
    assert public is not None
    assert signatures.signed_by(
        bytes(head.seal or b""), bytes(head.signature or b""), public=public
    )


@pytest.mark.parametrize(
    ("mode", "end", "status", "error_code"),
    [
        ("one-shot", {"code": 0}, "completed", ""),
        ("one-shot", {"code": 3}, "failed", "run-exited"),
        ("interactive", {"code": 3}, "completed", ""),
        (
            "interactive",
            {"code": None, "signal": "SIGHUP", "reason": "signaled"},
            "completed",
            "",
        ),
        (
            "one-shot",
            {"code": None, "signal": "SIGKILL", "reason": "timeout"},
            "failed",
            "run-timeout",
        ),
        ("one-shot", {"code": None, "signal": "SIGTERM", "reason": "cancelled"}, "cancelled", ""),
        ("one-shot", {"code": 127, "reason": "startFailed"}, "failed", "run-start-failed"),
        ("one-shot", {"exit": None, "because": "recorder-lost"}, "failed", "record-ended-early"),
        ("boot", {"code": 143, "because": "stopped"}, "completed", ""),
        ("boot", {"code": 1}, "failed", "run-exited"),
        (
            "one-shot",
            {"exit": {"code": 10**30, "signal": ["x"], "reason": 7}},
            "failed",
            "run-exited",
        ),
    ],
)
def test_a_run_ends_as_its_record_says(
    mode: str, end: dict[str, Any], status: str, error_code: str
) -> None:
    run = make_run(mode=mode)
    source = Source(run)
    source.open()
    source.started()
    source.sealed(**end)
    assert source.append().sealed
    run.refresh_from_db()
    assert (run.status, run.error_code) == (status, error_code)


def test_a_command_that_could_not_be_started_says_why() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    why = "cannot run no-such-program: No such file or directory"
    source.process(["no-such-program"], startFailed=why)
    source.sealed(code=127, reason="startFailed")
    source.append()
    run.refresh_from_db()
    assert run.error_message == f"The command could not be started: {why}."


def test_input_that_a_program_did_not_take_is_no_loss() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process(streams=["stdin", "stdout"])
    source.output(process, b"taken", stream=Stream.STDIN)
    source.closed(process, Stream.STDIN, reason="abandoned")
    source.sealed()
    source.append()
    assert not RunLoss.objects.filter(run_number=run.number).exists()


def test_a_final_run_stays_as_it_is_when_its_record_ends() -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).settle(Run.Status.CANCELLED)
    record(run)
    run.refresh_from_db()
    assert run.status == "cancelled"


def test_what_is_stored_already_is_passed_over() -> None:
    run = make_run()
    source = Source(run)
    assert source.open() == 0
    source.started()
    process = source.process()
    source.output(process, b"one")
    source.append()
    source.output(process, b"two")
    source.waiting = list(source.contents)
    assert source.append() == store.Appended(4, False, 1)
    assert source.open() == 4
    assert store.append(run.number, source.source_id, source.contents).events == 0
    assert len(stored_contents(run)) == 4
    assert RunCheckpoint.objects.filter(run_number=run.number).count() == 2


def test_the_last_batch_may_come_again_after_the_end() -> None:
    run = make_run()
    source = record(run)
    last = len(source.contents)
    again = store.append(run.number, source.source_id, source.contents)
    assert again == store.Appended(last, True, 0)
    assert source.open() == last
    source.output(1, b"late")
    with pytest.raises(store.RecordSealed):
        source.append()


def test_missing_events_are_a_loss_also_the_first_ones() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=4)
    source.append()
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=5)
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=9)
    source.append()
    assert losses_of(run) == [("sequence_gap", 1, 3, 3, "gap"), ("sequence_gap", 6, 8, 3, "gap")]


def test_bytes_that_a_stream_skips_are_a_loss_unless_they_were_declared() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    process = source.process()
    source.output(process, b"abc", offset=10)
    source.event(
        Kind.TELEMETRY_DROPPED,
        {"toOffset": 20, "bytes": 7, "reason": "spool-full"},
        process=process,
        stream=Stream.STDOUT,
        offset=13,
    )
    source.output(process, b"def", offset=20)
    source.event(
        Kind.PROCESS_STREAM_CLOSED,
        {"reason": "eof"},
        process=process,
        stream=Stream.STDOUT,
        offset=30,
    )
    source.sealed(streams=[{"process": process, "stream": "stderr", "bytes": 5, "dropped": 0}])
    source.append()
    spans = RunLoss.objects.filter(run_number=run.number).order_by("position")
    assert [
        (loss.kind, loss.stream, loss.from_offset, loss.to_offset, loss.count, loss.detected_via)
        for loss in spans
    ] == [
        ("dropped_event", 2, 0, 10, 10, "gap"),
        ("dropped_event", 2, 13, 20, 7, "marker"),
        ("dropped_event", 2, 23, 30, 7, "gap"),
        ("dropped_event", 3, 0, 5, 5, "gap"),
    ]


def test_hidden_input_is_no_loss() -> None:
    run = make_run(mode="interactive")
    source = Source(run)
    source.open()
    process = source.process(streams=["pty"])
    source.output(process, b"sudo x\r", stream=Stream.PTY_INPUT)
    source.event(
        Kind.INPUT_HIDDEN, {"bytes": 9}, process=process, stream=Stream.PTY_INPUT, offset=7
    )
    source.output(process, b"ls\r", stream=Stream.PTY_INPUT, offset=16)
    source.append()
    assert losses_of(run) == []
    assert head_of(run).stream_bytes == {"1/4": 19}


def test_processes_losses_changes_and_coverage_are_told_by_events() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    leader = source.process(["sh", "-c", "x"], name="step")
    source.process(["sleep"], leader=False, parent=leader)
    source.event(Kind.COVERAGE_CHANGED, {"source": "files", "state": "limited", "reason": "many"})
    source.event(Kind.FILE_WATCH_OVERFLOW, {"root": "/workspace"})
    source.event(
        Kind.FILE_DIFF_ENTRY,
        {
            "position": 1,
            "path": {"text": "a?", "base64": "YWH/"},
            "oldPath": "b",
            "change": "renamed",
            "binary": False,
            "addedLines": 1,
            "modeAfter": "100644",
            "patchTruncated": False,
        },
        method=Method.SNAPSHOT,
        body=b"patch",
    )
    source.closed(leader, reason="abandoned")
    source.exited(leader, code=None, signal="SIGKILL", reason="signaled")
    source.append()
    first, second = RunProcess.objects.filter(run_number=run.number).order_by("process_number")
    assert (first.leader, first.argv, first.name, first.streams) == (
        True,
        ["sh", "-c", "x"],
        "step",
        [2, 3],
    )
    assert (first.exit_code, first.exit_signal, first.exit_reason) == (None, "SIGKILL", "signaled")
    assert (second.parent_number, second.ended_us) == (1, None)
    change = RunChange.objects.get(run_number=run.number)
    assert (bytes(change.path), bytes(change.old_path or b"")) == (b"aa\xff", b"b")
    assert bytes(change.patch) == b"patch"
    assert [kind for kind, *_ in losses_of(run)] == ["watch_overflow", "dropped_event"]
    coverage = head_of(run).coverage
    assert coverage["files"] == {"state": "limited", "method": "snapshot", "reason": "many"}
    assert coverage["network"]["state"] == "off"
    assert head_of(run).process_count == 2


# What is told of one process, in how many batches and in which order it may come.
WAYS_TO_TELL = {
    "together": [["start", "exit"]],
    "one after the other": [["start"], ["exit"]],
    "the end first": [["exit"], ["start"]],
    "the start again": [["start"], ["start again", "exit"]],
    "the end again": [["exit"], ["start", "exit again"]],
    "both again": [["start", "exit"], ["start again", "exit again"], ["exit again"]],
}


@pytest.mark.parametrize("with_another", [False, True])
@pytest.mark.parametrize("way", WAYS_TO_TELL)
def test_a_process_is_listed_as_it_was_first_told_however_that_is_cut_into_batches(
    way: str, with_another: bool
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.process(["shell"])
    source.append()
    first = {"leader": True, "pid": 7, "argv": ["a"], "cwd": "/a", "name": "n", "parent": 1}
    again = {"leader": False, "pid": 8, "argv": ["b"], "cwd": "/b", "name": "o", "parent": None}
    ended = {"code": 3, "signal": "SIGTERM", "reason": "signaled"}
    told: dict[str, tuple[int, dict[str, Any]]] = {
        "start": (Kind.PROCESS_STARTED, {**first, "streams": ["stdout"]}),
        "start again": (Kind.PROCESS_STARTED, {**again, "streams": []}),
        "exit": (Kind.PROCESS_EXITED, ended),
        "exit again": (Kind.PROCESS_EXITED, {"code": 4, "signal": None, "reason": "exited"}),
    }
    for batch in WAYS_TO_TELL[way]:
        for each in batch:
            kind, meta = told[each]
            source.event(kind, meta, process=2, wall_us=5 if kind == Kind.PROCESS_STARTED else 6)
        if with_another:
            source.processes = 2
            source.exited(source.process(["other"]), code=9)
        source.append()

    listed = RunProcess.objects.filter(run_number=run.number).order_by("process_number")
    assert [each.process_number for each in listed] == [1, 2, 3][: 3 if with_another else 2]
    process = listed[1]
    assert (process.leader, process.pid, process.argv) == (True, 7, ["a"])
    assert (process.cwd, process.name, process.parent_number) == ("/a", "n", 1)
    assert (process.streams, process.started_us, process.ended_us) == ([2], 5, 6)
    assert (process.exit_code, process.exit_signal, process.exit_reason) == (
        3,
        "SIGTERM",
        "signaled",
    )
    if with_another:
        assert (listed[2].argv, listed[2].exit_code) == (["other"], 9)


def test_a_batch_of_any_size_is_stored_to_its_last_byte() -> None:
    bodies = [bytes([number]) * 60_000 for number in range(1, 8)]
    whole, cut = make_run(), make_run()
    record(whole, bodies)
    source = Source(cut)
    source.open()
    for content in record(make_run(), bodies).contents:
        store.append(cut.number, source.source_id, [content])

    for run in (whole, cut):
        chunks = RunEvent.objects.filter(run_number=run.number, kind=Kind.IO_CHUNK)
        assert [bytes(each.body) for each in chunks.order_by("sequence")] == bodies
        assert head_of(run).stored_bytes == head_of(whole).stored_bytes > 7 * 60_000


def test_losses_are_numbered_from_one_on_over_all_batches() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    for root in ("/a", "/b", "/c"):
        source.event(Kind.FILE_WATCH_OVERFLOW, {"root": root})
        if root != "/a":
            source.append()
    losses = RunLoss.objects.filter(run_number=run.number).order_by("position")
    assert list(losses.values_list("position", "reason")) == [(1, "/a"), (2, "/b"), (3, "/c")]
    assert head_of(run).loss_count == 3


def test_what_is_stored_and_what_it_lacks_is_counted_once(
    django_capture_on_commit_callbacks: Any,
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.event(Kind.FILE_WATCH_OVERFLOW, {"root": "/a"})
    counting.take()
    with django_capture_on_commit_callbacks(execute=True):
        source.append()
        store.append(run.number, source.source_id, source.contents)

    counted = counting.take()
    assert counted[(RECORD_BATCHES.name, (), "")] == 1
    assert counted[(RECORD_EVENTS.name, (), "")] == 2
    assert counted[(RECORD_BYTES.name, (), "")] == sum(map(len, source.contents))
    assert counted[(RECORD_LOSSES.name, ("watch_overflow",), "")] == 1
