"""Frames that a workspace's root forged: stored, brought into range or refused, never a crash."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.agent.record.frames import HEADER, Event, Kind, Stream, content_of, decode
from runs.models import RunChange, RunEvent, RunHead, RunLoss, RunProcess
from runs.record import store
from runs.record.ingest import meta as metas
from runs.record.ingest.batch import LAST_SEQUENCE
from runs.record.ingest.derived import MAX_OFFSET, UNPLACED_PROCESS
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run

pytestmark = pytest.mark.django_db

DEEP = b'{"argv":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
METAS = [
    b"",
    b"\0\xff",
    b"null",
    b"[]",
    b'"text"',
    b'{"pid":1e400,"code":NaN}',
    DEEP,
    b'{"argv":["\\u0000","\\ud800"],"cwd":"\\u0000","name":{"text":7,"base64":"?"}}',
    b'{"code":' + b"9" * 5000 + b"}",
    b'{"code":-99999999999999999999,"pid":99999999999999999999,"signal":[],"reason":{}}',
    b'{"streams":[{"process":1e9,"stream":[],"bytes":-1},7],"exit":[]}',
    b'{"streams":["stdout",{},null,"\\u0000"],"argv":{"a":1},"leader":"yes","parent":-5}',
    b'{"coverage":{"io":{"state":"\\u0000","detail":"\\udfff","intervalMs":1e99}},"source":{}}',
    b'{"coverage":7,"source":"io","state":"\\u0000"}',
    b'{"position":1,"path":"\\u0000","oldPath":{"base64":"%%"},"modeAfter":"123456789"}',
    b'{"position":99999999999999999999,"path":{"base64":"AP8="},"addedLines":true}',
    b'{"toOffset":-1,"bytes":"x","count":[],"what":"\\u0000","reason":"\\ud800"}',
    b'{"totals":{"streams":{"a":1}},"exit":{"code":"0","signal":"\\u0000","reason":"\\u0000"}}',
]


@pytest.mark.parametrize("meta", METAS, ids=range(len(METAS)))
def test_whatever_a_meta_holds_every_kind_of_event_is_stored_with_it(meta: bytes) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    for kind in [*range(18), 19, 32_768, 65_535, Kind.RECORD_SEALED]:
        source.event(kind, meta, process=1, stream=Stream.STDOUT, body=b"\0\xff")
    assert source.append().sealed
    stored = RunEvent.objects.filter(run_number=run.number).order_by("sequence")
    assert [bytes(event.meta) for event in stored] == [meta] * len(source.contents)
    assert verify_run(run).ok
    run.refresh_from_db()
    assert run.status in {"failed", "completed"}


numbers = st.one_of(
    st.integers(0, 5), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1)
)
wide = st.one_of(
    st.integers(0, 50),
    st.sampled_from([2**62, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)
forged = st.builds(
    Event,
    st.one_of(st.integers(0, 30), wide),
    st.integers(-(2**63), 2**63 - 1),
    wide,
    st.one_of(st.integers(0, 20), st.integers(0, 65_535)),
    st.integers(0, 255),
    st.integers(0, 255),
    numbers,
    st.integers(0, 255),
    wide,
    st.one_of(st.binary(max_size=20), st.sampled_from(METAS)),
    st.binary(max_size=20),
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(st.lists(forged, max_size=6), max_size=4), junk=st.binary(max_size=50))
def test_any_header_is_stored_or_refused_for_good(batches: list[list[Event]], junk: bytes) -> None:
    run = make_run(mode="boot")
    store.open_source(run.number, "build")
    store.append(run.number, "build", [content_of(Event(1, 0, 0, 2, 1, 1, 1, 0, 0, b"", b""))])
    store.open_source(run.number, "forged")
    try:
        for batch in batches:
            contents = [content_of(event) for event in batch]
            first = store.append(run.number, "forged", contents)
            assert store.append(run.number, "forged", contents) == store.Appended(
                first.last_sequence, first.sealed, 0
            )
        store.append(run.number, "forged", [junk])
    except store.SourceRefused:
        assert store.close_early(run.number, reason="source-refused", detail="forged")
    except store.RecordSealed:
        assert RunHead.objects.get(pk=run.number).sealed_at is not None
    store.close_early(run.number, reason="container-gone", detail="the end")
    found = verify_run(run)
    assert found.ok, found
    own = RunEvent.objects.filter(run_number=run.number, process_number=1)
    assert [event.sequence for event in own] == [1], "the build's process was forged"


def test_a_sequence_beyond_64_bits_is_refused_and_what_came_before_it_is_kept() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=2**63 - 1, wall_us=0, monotonic_ns=0)
    with pytest.raises(store.SourceRefused, match="out of range"):
        source.append()
    assert source.open() == 1
    assert store.close_early(run.number, reason="source-refused", detail="out of range")
    assert verify_run(run).ok


def test_the_highest_sequence_leaves_room_for_the_end() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.event(
        Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=LAST_SEQUENCE, wall_us=0, monotonic_ns=0
    )
    source.append()
    assert store.close_early(run.number, reason="container-gone", detail="removed")
    assert RunHead.objects.get(pk=run.number).last_sequence == LAST_SEQUENCE + 1
    assert verify_run(run).ok


@pytest.mark.parametrize("junk", [b"", b"short", struct.pack("!I", 2**32 - 1) * 20])
def test_bytes_that_are_no_event_are_refused_and_what_came_before_them_is_kept(
    junk: bytes,
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.waiting.append(junk)
    source.process()
    with pytest.raises(store.SourceRefused):
        source.append()
    assert source.open() == 1


def test_numbers_that_no_column_holds_are_brought_into_range() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.event(
        Kind.IO_CHUNK,
        process=2**32 - 1,
        stream=255,
        offset=2**64 - 1,
        body=b"x",
        wall_us=-(2**63),
        monotonic_ns=2**64 - 1,
    )
    source.append()
    event = RunEvent.objects.get(run_number=run.number)
    assert (event.process_number, event.stream_offset) == (UNPLACED_PROCESS, MAX_OFFSET)
    assert (event.wall_us, event.monotonic_ns) == (-(2**63), 2**63 - 1)
    assert verify_run(run).ok


# Each is the only thing about an otherwise plain chunk that is out of range: nothing else keeps it
# from being stored as it is. What is told, and what is stored of it.
OUT_OF_RANGE = {
    "offset": ({"offset": MAX_OFFSET + 1}, {"stream_offset": MAX_OFFSET}),
    "clock": ({"monotonic_ns": 2**63}, {"monotonic_ns": 2**63 - 1}),
    "process above its sequence": ({"process": 4}, {"process_number": UNPLACED_PROCESS}),
    "process above 31 bits": (
        {"process": 2**31, "sequence": 2**31 + 1},
        {"process_number": UNPLACED_PROCESS},
    ),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_one_number_of_a_plain_chunk_that_no_column_holds_is_brought_into_range(name: str) -> None:
    told, stored = OUT_OF_RANGE[name]
    plain = {"process": 1, "offset": 0, "monotonic_ns": 5}
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    # The chunk follows the event before it, whatever its sequence is.
    before = told.get("sequence", 3) - 1
    source.event(Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=before)
    source.event(Kind.IO_CHUNK, stream=Stream.STDOUT, body=b"x", **plain | told)
    source.append()

    event = RunEvent.objects.get(run_number=run.number, kind=Kind.IO_CHUNK)
    expected = {"process_number": 1, "stream_offset": 0, "monotonic_ns": 5} | stored
    assert {column: getattr(event, column) for column in expected} == expected
    assert (event.sequence, bytes(event.body)) == (before + 1, b"x")
    assert verify_run(run).ok


def test_a_plain_chunk_may_not_take_the_sequence_that_is_kept_for_the_end() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.event(
        Kind.NETWORK_SOURCE_OBSERVED, {}, sequence=LAST_SEQUENCE, wall_us=0, monotonic_ns=0
    )
    source.event(Kind.IO_CHUNK, process=1, stream=2, body=b"x", wall_us=0, monotonic_ns=0)
    with pytest.raises(store.SourceRefused, match="out of range"):
        source.append()
    assert source.open() == LAST_SEQUENCE
    assert store.close_early(run.number, reason="source-refused", detail="out of range")
    assert verify_run(run).ok


def test_a_plain_chunk_that_comes_again_is_passed_over_and_one_that_comes_too_early_is_a_gap() -> (
    None
):
    run = make_run()
    source = Source(run)
    source.open()
    process = source.process()
    again = source.output(process, b"one")
    source.waiting.append(again)
    source.append()
    source.sequence += 2
    source.output(process, b"two")
    source.append()
    chunks = RunEvent.objects.filter(run_number=run.number, kind=Kind.IO_CHUNK)
    assert [(each.sequence, bytes(each.body)) for each in chunks.order_by("sequence")] == [
        (2, b"one"),
        (5, b"two"),
    ]
    loss = RunLoss.objects.get(run_number=run.number)
    assert (loss.kind, loss.from_sequence, loss.to_sequence) == ("sequence_gap", 3, 4)
    assert verify_run(run).ok


def test_a_chunk_with_a_meta_keeps_it_apart_from_its_bytes() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.event(Kind.IO_CHUNK, b'{"masked":[[0,1]]}', process=1, stream=2, body=b"*x")
    source.append()
    event = RunEvent.objects.get(run_number=run.number)
    assert (bytes(event.meta), bytes(event.body)) == (b'{"masked":[[0,1]]}', b"*x")
    assert verify_run(run).ok


@pytest.mark.parametrize("processes", [0, 1])
def test_a_plain_chunk_of_a_second_source_is_never_taken_for_the_next_one_of_the_first(
    processes: int,
) -> None:
    run = make_run(mode="boot")
    first = Source(run, "build")
    first.open()
    first.started()
    for _ in range(processes):
        first.process()
    first.append()
    base = first.sequence
    # What came before is lost, so its own number is the one that would follow in the record.
    second = Source(run, "second", last_sequence=base)
    second.open()
    second.output(1, b"x")
    second.append()
    event = RunEvent.objects.get(run_number=run.number, kind=Kind.IO_CHUNK)
    assert (event.sequence, event.process_number) == (2 * base + 1, processes + 1)
    gap = RunLoss.objects.get(run_number=run.number, kind=RunLoss.Kind.SEQUENCE_GAP)
    assert (gap.from_sequence, gap.to_sequence) == (base + 1, 2 * base)
    assert verify_run(run).ok


def test_a_huge_command_line_is_kept_by_the_event_and_cut_in_what_is_derived() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    argv = ["x" * 1_000_000, *[""] * 500_000]
    source.process(argv)
    source.append()
    event = RunEvent.objects.get(run_number=run.number)
    assert json.loads(bytes(event.meta))["argv"] == argv
    process = RunProcess.objects.get(run_number=run.number)
    assert sum(map(len, process.argv)) <= metas.TEXT_LIMIT + 1
    assert process.argv[-1].endswith("…")


def test_what_is_told_twice_counts_once() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    process = source.process(["first"])
    source.exited(process, code=1)
    source.append()
    source.processes = 0
    source.process(["second"])
    source.exited(process, code=2)
    for path in ("a", "b"):
        source.event(Kind.FILE_DIFF_ENTRY, {"position": 1, "path": path, "change": "added"})
    source.append()
    told = RunProcess.objects.get(run_number=run.number)
    assert (told.argv, told.exit_code) == (["first"], 1)
    assert bytes(RunChange.objects.get(run_number=run.number).path) == b"a"


def test_a_forger_of_streams_does_not_make_the_head_grow_for_ever() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    for number in range(1, 17_000):
        source.event(Kind.IO_CHUNK, process=number, stream=2, body=b"x")
    source.append()
    assert len(RunHead.objects.get(pk=run.number).stream_bytes) == 16_384
    loss = RunLoss.objects.get(run_number=run.number)
    assert loss.reason.startswith("more than 16384 streams")


def test_bytes_that_are_told_twice_are_a_loss_and_no_hole() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    process = source.process()
    source.output(process, b"abcdef")
    source.output(process, b"XX", offset=2)
    source.output(process, b"g", offset=6)
    source.append()
    loss = RunLoss.objects.get(run_number=run.number)
    assert (loss.process_number, loss.stream, loss.from_offset) == (process, 2, None)
    assert loss.reason.startswith("contradicted")
    assert RunHead.objects.get(pk=run.number).stream_bytes == {"1/2": 7}


def test_a_content_is_read_as_the_agent_reads_it() -> None:
    run = make_run()
    content = Source(run).event(Kind.IO_CHUNK, process=1, stream=2, body=b"abc")
    assert len(content) == HEADER.size + 3
    assert decode(content).body == b"abc"
