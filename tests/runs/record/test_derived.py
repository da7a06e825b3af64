"""What events tell besides themselves, one member and one bound at a time. Needs no database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runs.agent.record.frames import Confidence, Event, Kind, Method, Stream, content_of
from runs.record.ingest import meta as metas
from runs.record.ingest.batch import LAST_SEQUENCE, Batch
from runs.record.ingest.derived import (
    MAX_OFFSET,
    SOURCES,
    TRACKED_STREAMS,
    UNPLACED_PROCESS,
    Derived,
    Loss,
)

INT32, INT64 = 2**31 - 1, 2**63 - 1


def event(kind: int, told: Any = None, **values: Any) -> Event:
    """Return an event of process 1 with sequence 9, wall time 11 and offset 0."""
    meta = b"" if told is None else json.dumps(told).encode()
    given = {"process": 1, "stream": Stream.NONE, "offset": 0, "body": b"", **values}
    return Event(
        *(9, 11, 12, kind, Method.PIPE, Confidence.OBSERVED),
        given["process"],
        given["stream"],
        given["offset"],
        meta,
        given["body"],
    )


def taken(*events: Event, base: int = 0, **streams: int) -> Derived:
    """Return what events tell; ``streams`` with ``_`` for ``/`` have come so far."""
    derived = Derived(base, {name[1:].replace("_", "/"): end for name, end in streams.items()}, {})
    for each in events:
        derived.take(each)
    return derived


# ---------------------------------------------------------------- members of metas


@pytest.mark.parametrize("meta", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b"null"])
def test_a_meta_that_is_no_object_says_nothing(meta: bytes) -> None:
    assert metas.read(meta) == {}


def test_a_text_is_taken_in_both_forms_and_cut_where_it_is_too_long() -> None:
    assert [metas.text(value) for value in ("a", {"text": "b", "base64": "Yg=="})] == ["a", "b"]
    assert [metas.text(value) for value in (None, 1, ["a"], {}, {"text": 1})] == [""] * 5
    assert (metas.text("12345", 5), metas.text("123456", 5)) == ("12345", "1234…")
    assert metas.text("a\0b\ud800") == "a\ufffdb?"
    assert len(metas.text("x" * 70_000)) == metas.TEXT_LIMIT == 64 * 1024


def test_the_bytes_of_a_text_are_those_it_stands_for() -> None:
    assert metas.raw("é\ud800") == "é?".encode()
    assert metas.raw({"text": "a?", "base64": "Yf8="}) == b"a\xff"
    assert metas.raw({"text": "a", "base64": "Y_8="}) == metas.raw({"text": "a"}) == b"a"
    assert metas.raw({"text": "a", "base64": "Y!WI="}) == b"a"
    assert metas.raw({"base64": 1}) is metas.raw(None) is metas.raw(7) is None


def test_a_list_of_texts_is_cut_with_all_its_texts_together() -> None:
    assert metas.texts(["ab", 1, "c"], 10) == ["ab", "", "c"]
    assert metas.texts(["abc", "d", "e"], 6) == ["abc", "d", "…"]
    assert metas.texts(["abcd", "efgh"], 7) == ["abcd", "e…"]
    assert metas.texts([""] * 5, 3) == ["", "", "", "…"]
    assert metas.texts("abc") == metas.texts(None) == []


def test_a_number_is_whole_and_brought_into_range() -> None:
    assert [metas.integer(value) for value in (0, -1, INT64, INT64 + 1)] == [0, 0, INT64, INT64]
    assert [metas.integer(value) for value in (True, 1.0, "1", None)] == [None] * 4
    assert [metas.integer(value, -3, 5) for value in (-4, -3, 5, 6)] == [-3, -3, 5, 5]


def test_streams_are_known_names_each_once_in_their_order() -> None:
    assert metas.streams(["stderr", "stdin", "stderr", "x", 1]) == [1, 3]
    assert metas.streams(["pty", "ptyInput", "stdout"]) == [2, 4, 5]
    assert metas.streams(["x"]) == metas.streams("stdin") == []


# ---------------------------------------------------------------- processes


def test_a_process_is_listed_as_it_tells_and_only_once() -> None:
    told = {
        "parent": 2,
        "leader": True,
        "pid": 77,
        "argv": ["a", "b"],
        "cwd": "/c",
        "name": "n",
        "streams": ["stdout"],
    }
    derived = taken(
        event(Kind.PROCESS_STARTED, told, process=5),
        event(Kind.PROCESS_STARTED, {}, process=5),
        base=3,
    )
    assert derived.starts == {5: (5, True, 77, ["a", "b"], "/c", "n", [2], 11)}
    assert derived.highest_process == 5


@pytest.mark.parametrize("leader", [1, "true", None, False])
def test_a_leader_is_only_who_is_said_to_be_one(leader: object) -> None:
    derived = taken(event(Kind.PROCESS_STARTED, {"leader": leader}))
    assert derived.starts == {1: (None, False, None, [], "", "", [], 11)}


@pytest.mark.parametrize(
    ("parent", "placed"),
    [(0, None), (1, 4), (-1, None), ("1", None), (INT32 - 4, INT32 - 1), (INT32 - 3, None)],
)
def test_a_parent_is_a_process_of_the_same_source(parent: object, placed: int | None) -> None:
    derived = taken(event(Kind.PROCESS_STARTED, {"parent": parent}), base=3)
    assert derived.starts[1][0] == placed


def test_the_end_of_a_process_is_listed_as_it_tells_and_only_once() -> None:
    told = {"code": 3, "signal": "SIGKILLED-BY-SOMEBODY", "reason": "r" * 17}
    derived = taken(
        event(Kind.PROCESS_EXITED, told, process=4), event(Kind.PROCESS_EXITED, {}, process=4)
    )
    assert derived.exits == {4: (11, 3, "SIGKILLED-BY-SO…", "r" * 15 + "…")}
    assert derived.highest_process == 4


@pytest.mark.parametrize(("code", "kept"), [(-(2**40), -INT32), (2**40, INT32), (-1, -1)])
def test_an_exit_code_is_brought_into_range(code: int, kept: int) -> None:
    assert taken(event(Kind.PROCESS_EXITED, {"code": code})).exits[1][1] == kept


@pytest.mark.parametrize("kind", [Kind.PROCESS_STARTED, Kind.PROCESS_EXITED])
@pytest.mark.parametrize(
    ("process", "listed"), [(0, False), (UNPLACED_PROCESS, False), (UNPLACED_PROCESS - 1, True)]
)
def test_a_number_that_no_process_has_is_not_listed(kind: int, process: int, listed: bool) -> None:
    derived = taken(event(kind, {}, process=process))
    assert bool(derived.starts or derived.exits) is listed
    assert derived.highest_process == (process if listed else 0)


def test_the_highest_process_is_kept_whichever_comes_last() -> None:
    for kind in (Kind.PROCESS_STARTED, Kind.PROCESS_EXITED):
        assert taken(event(kind, process=7), event(kind, process=2)).highest_process == 7


# ---------------------------------------------------------------- streams


def test_a_stream_that_goes_on_is_no_loss_and_its_end_is_kept() -> None:
    derived = Derived(0, {}, {})
    derived.reach(1, 1, 2, 0, 5)
    derived.reach(2, 1, 2, 5, 5)
    derived.reach(3, 1, 3, 0, 0)
    assert (derived.losses, derived.streams) == ([], {"1/2": 5, "1/3": 0})


def test_a_jump_is_a_loss_of_the_bytes_between() -> None:
    derived = taken(_1_2=5)
    derived.reach(7, 1, 2, 8, 10)
    why = "bytes of the stream are missing"
    assert derived.losses == [Loss("dropped_event", "gap", 7, 7, 1, 2, 5, 8, 3, why)]
    assert derived.streams == {"1/2": 10}


def test_bytes_that_are_told_again_are_a_loss_and_the_end_stays() -> None:
    derived = taken(_1_2=5)
    derived.reach(7, 1, 2, 4, 5)
    derived.reach(8, 1, 2, 3, 3)
    why = "contradicted: bytes from offset 4 were told before"
    assert derived.losses == [Loss("dropped_event", "gap", 7, 7, 1, 2, reason=why)]
    assert derived.streams == {"1/2": 5}


def test_so_many_streams_are_followed_and_of_more_it_is_said_once() -> None:
    assert TRACKED_STREAMS == 16_384
    derived = Derived(0, {str(number): 0 for number in range(TRACKED_STREAMS - 1)}, {})
    for number in (1, 2, 3):
        derived.reach(number, number, 2, 0, 1)
    derived.reach(4, 1, 2, 1, 2)
    assert len(derived.streams) == TRACKED_STREAMS
    assert derived.streams["1/2"] == 2
    why = "more than 16384 streams: holes in the others are not looked for"
    assert derived.losses == [Loss("dropped_event", "gap", 2, reason=why)]


@pytest.mark.parametrize(
    ("stream", "reason", "lost"),
    [
        (Stream.STDOUT, "abandoned", True),
        (Stream.PTY_OUTPUT, "abandoned", True),
        (Stream.STDIN, "abandoned", False),
        (Stream.PTY_INPUT, "abandoned", False),
        (Stream.STDOUT, "eof", False),
    ],
)
def test_an_output_that_somebody_held_open_is_a_loss(stream: int, reason: str, lost: bool) -> None:
    closed = event(Kind.PROCESS_STREAM_CLOSED, {"reason": reason}, stream=stream, offset=5)
    derived = taken(closed, **{f"_1_{stream}": 5})
    why = "abandoned: somebody held the stream open after its process had ended"
    loss = Loss("dropped_event", "marker", 9, 9, 1, stream, 5, reason=why)
    assert derived.losses == ([loss] if lost else [])


def test_the_end_of_a_stream_tells_what_is_missing_before_it() -> None:
    derived = taken(event(Kind.PROCESS_STREAM_CLOSED, {}, stream=2, offset=8), _1_2=5)
    assert [(loss.from_offset, loss.to_offset) for loss in derived.losses] == [(5, 8)]


@pytest.mark.parametrize(
    ("hidden", "end"), [(3, 8), (None, 5), (-1, 5), (2**63, MAX_OFFSET), ("3", 5)]
)
def test_hidden_input_is_part_of_the_stream(hidden: object, end: int) -> None:
    derived = taken(event(Kind.INPUT_HIDDEN, {"bytes": hidden}, stream=4, offset=5), _1_4=5)
    assert (derived.streams, derived.losses) == ({"1/4": end}, [])


def test_dropped_bytes_are_a_loss_with_their_place() -> None:
    told = {"toOffset": 9, "bytes": 3, "reason": "r" * 201}
    derived = taken(event(Kind.TELEMETRY_DROPPED, told, stream=2, offset=5), _1_2=5)
    why = "r" * 199 + "…"
    assert derived.losses == [Loss("dropped_event", "marker", 9, 9, 1, 2, 5, 9, 3, why)]
    assert derived.streams == {"1/2": 9}
    beyond = taken(event(Kind.TELEMETRY_DROPPED, {"toOffset": 2**63}, stream=2, offset=5), _1_2=5)
    assert (beyond.streams, beyond.losses[-1].to_offset) == ({"1/2": MAX_OFFSET}, MAX_OFFSET)
    without = taken(event(Kind.TELEMETRY_DROPPED, {}, stream=2, offset=5), _1_2=5)
    assert without.losses == [Loss("dropped_event", "marker", 9, 9, 1, 2, 5, None, None, "")]
    assert without.streams == {"1/2": 5}


def test_dropped_events_are_a_loss_with_what_they_told_of() -> None:
    for told, why in (
        ({"what": "files", "reason": "full"}, "files: full"),
        ({"what": "w" * 201, "reason": "full"}, "w" * 199 + "…: full"),
        ({}, ""),
    ):
        derived = taken(event(Kind.TELEMETRY_DROPPED, {"count": 4, **told}))
        assert derived.losses == [Loss("dropped_event", "marker", 9, 9, count=4, reason=why)]


def test_a_watch_that_overflowed_is_a_loss_below_its_folder() -> None:
    derived = taken(event(Kind.FILE_WATCH_OVERFLOW, {"root": "/" * 5000}))
    assert derived.losses == [Loss("watch_overflow", "marker", 9, 9, reason="/" * 4095 + "…")]


@pytest.mark.parametrize("kind", [Kind.RECORD_SEALED, Kind.RUNTIME_STATE_CHANGED])
def test_totals_tell_what_never_came(kind: int) -> None:
    listed = [
        {"process": 1, "stream": "stdout", "bytes": 7},
        {"process": 1, "stream": "stderr", "bytes": 2},
        {"process": 0, "stream": "stdout", "bytes": 7},
        {"process": 1, "stream": "x", "bytes": 7},
        {"process": 1, "stream": ["stdout"], "bytes": 7},
        {"process": 1, "stream": "pty", "bytes": "7"},
        1,
    ]
    told: Any = {"streams": listed}
    derived = taken(
        event(kind, told if kind == Kind.RECORD_SEALED else {"totals": told}), base=1, _2_2=7
    )
    why = "bytes of the stream are missing"
    assert derived.losses == [Loss("dropped_event", "gap", 9, 9, 2, 3, 0, 2, 2, why)]
    for junk in ({"streams": "x"}, {}, None):
        told = junk if kind == Kind.RECORD_SEALED else {"totals": junk}
        assert taken(event(kind, told)).losses == []


def test_a_total_beyond_every_stream_is_brought_into_range() -> None:
    told = {"streams": [{"process": 1, "stream": "stdout", "bytes": 2**63}]}
    assert taken(event(Kind.RECORD_SEALED, told), _1_2=5).streams == {"1/2": MAX_OFFSET}


@pytest.mark.parametrize(("reason", "lost"), [("recorder-lost", True), ("ended", False)])
def test_a_lost_recorder_took_something_with_it(reason: str, lost: bool) -> None:
    why = "recorder-lost: what it had read and not written yet is gone"
    loss = Loss("early_close", "marker", 9, reason=why)
    derived = taken(event(Kind.RECORD_SEALED, {"reason": reason}))
    assert derived.losses == ([loss] if lost else [])


# ---------------------------------------------------------------- changes and coverage


def test_a_change_is_listed_as_it_tells_and_only_once() -> None:
    told = {
        "position": 3,
        "path": {"text": "a?", "base64": "Yf8="},
        "oldPath": "b",
        "change": "renamed-by-someone",
        "binary": True,
        "addedLines": 1,
        "removedLines": 2,
        "sizeBefore": 3,
        "sizeAfter": 4,
        "modeBefore": "1006441",
        "modeAfter": "1007551",
        "patchTruncated": True,
    }
    entry = event(Kind.FILE_DIFF_ENTRY, told, body=b"patch")
    again = event(Kind.FILE_DIFF_ENTRY, {"position": 3, "path": "c"})
    last = event(Kind.FILE_DIFF_ENTRY, {"position": INT32 + 1, "path": ""})
    numbers = (1, 2, 3, 4)
    assert taken(entry, again, last).changes == {
        3: (
            *(b"a\xff", b"b", "renamed-by-some…", True, *numbers, "10064…", "10075…"),
            *(b"patch", True),
        ),
        INT32: (b"", None, "", False, None, None, None, None, "", "", b"", False),
    }


@pytest.mark.parametrize("told", [{"path": "a"}, {"position": 0, "path": "a"}, {"position": 1}])
def test_a_change_without_place_or_path_is_none(told: dict[str, Any]) -> None:
    assert taken(event(Kind.FILE_DIFF_ENTRY, told)).changes == {}


def test_coverage_is_what_is_known_of_each_source() -> None:
    said = {"state": "on", "method": "m", "reason": "r" * 501, "detail": "d", "intervalMs": 5}
    listed: dict[str, Any] = {name: {**said, "x": 1} for name in SOURCES}
    derived = taken(event(Kind.RECORD_STARTED, {"coverage": {**listed, "other": {}}}))
    assert derived.coverage == {name: {**said, "reason": "r" * 499 + "…"} for name in SOURCES}
    assert SOURCES == ("processes", "io", "files", "network", "input")
    derived.take(event(Kind.RECORD_STARTED, {"coverage": {"io": 1, "input": {"state": 1}}}))
    assert derived.coverage == {"input": {}}
    derived.take(event(Kind.RECORD_STARTED, {"coverage": "x"}))
    assert derived.coverage == {"input": {}}


def test_what_the_control_plane_says_of_coverage_is_not_for_a_source_to_change() -> None:
    derived = Derived(0, {}, {"egress": {"state": "on"}, "io": {"state": "on"}})
    derived.take(event(Kind.RECORD_STARTED, {"coverage": {"egress": {"state": "off"}}}))
    derived.take(event(Kind.COVERAGE_CHANGED, {"source": "egress", "state": "off"}))
    assert derived.coverage == {"egress": {"state": "on"}}


def test_coverage_that_changes_keeps_what_is_not_said_again() -> None:
    derived = Derived(0, {}, {"io": {"state": "on", "method": "m"}})
    derived.take(event(Kind.COVERAGE_CHANGED, {"source": "io", "state": "off"}))
    derived.take(event(Kind.COVERAGE_CHANGED, {"source": "files", "state": "on"}))
    derived.take(event(Kind.COVERAGE_CHANGED, {"source": "other", "state": "on"}))
    assert derived.coverage == {"io": {"state": "off", "method": "m"}, "files": {"state": "on"}}


# ---------------------------------------------------------------- batches


def batch(**values: Any) -> Batch:
    given: dict[str, Any] = {
        "run_number": 1,
        "source_base": 0,
        "process_base": 0,
        "sequence": 8,
        "chain_head": bytes(32),
        "source_ended": True,
        "derived": Derived(values.get("process_base", 0), {}, {}),
        **values,
    }
    return Batch(**given)


def stored(into: Batch, *events: Event) -> bytes:
    """Return the rows of events."""
    return b"".join(into.rows([content_of(each) for each in events]))


@pytest.mark.parametrize("base", [0, 1])
def test_a_plain_chunk_and_one_with_the_numbers_of_a_later_source_are_stored_alike(
    base: int,
) -> None:
    """With a base the chunk takes the slow path, which has to come to the same."""
    into = batch(source_base=base, sequence=8 + base)
    chunk = event(Kind.IO_CHUNK, stream=2, body=b"some")
    rows = stored(into, chunk)
    assert rows.endswith(b"\0\0\0\0\0\0\0\4some")
    assert (into.sequence, into.stored, into.stored_bytes) == (9 + base, 1, len(content_of(chunk)))
    assert (into.source_ended, into.sealed, into.refused) == (False, None, "")
    assert into.derived.streams == {"1/2": 4}


def test_what_is_stored_already_is_passed_over_and_a_hole_is_a_loss() -> None:
    into = batch()
    stored(
        into,
        *(event(999)._replace(sequence=number) for number in (7, 8, 12)),
        event(Kind.IO_CHUNK, stream=2)._replace(sequence=14),
    )
    why = "these events never arrived"
    assert (into.sequence, into.stored) == (14, 2)
    assert into.derived.losses == [
        Loss("sequence_gap", "gap", 9, 11, count=3, reason=why),
        Loss("sequence_gap", "gap", 13, 13, count=1, reason=why),
    ]
    assert stored(into, event(999)._replace(sequence=14)) == b""


@pytest.mark.parametrize("is_own", [False, True])
def test_only_the_control_plane_tells_what_the_egress_proxy_has_decided(is_own: bool) -> None:
    into = batch(**({"is_own": True} if is_own else {}))
    assert bool(stored(into, event(Kind.EGRESS_DECIDED, {}))) is is_own
    why = "" if is_own else "a source tells of decisions that are not its own"
    assert (into.refused, into.stored) == (why, int(is_own))


@pytest.mark.parametrize(("last", "refused"), [(9, False), (8, True)])
@pytest.mark.parametrize("kind", [Kind.IO_CHUNK, 999])
def test_a_sequence_beyond_the_last_one_is_refused(kind: int, last: int, refused: bool) -> None:
    into = batch(last_sequence=last)
    assert bool(stored(into, event(kind, stream=2))) is not refused
    assert into.refused == ("the sequence 9 is out of range" if refused else "")
    assert LAST_SEQUENCE == INT64 - 1 - 2**40


@pytest.mark.parametrize(
    ("process", "base", "placed"),
    [
        (0, 5, 0),
        (9, 0, 9),
        (9, 5, 14),
        (10, 5, UNPLACED_PROCESS),
        (9, INT32 - 10, INT32 - 1),
        (9, INT32 - 9, UNPLACED_PROCESS),
        (9, INT32 - 8, UNPLACED_PROCESS),
    ],
)
def test_a_process_has_the_runs_number_unless_its_own_cannot_be_true(
    process: int, base: int, placed: int
) -> None:
    into = batch(process_base=base)
    stored(into, event(Kind.IO_CHUNK, stream=2, process=process, body=b"x"))
    assert into.derived.streams == {f"{placed}/2": 1}


def test_nothing_comes_behind_the_end_and_rows_come_in_pieces() -> None:
    into = batch()
    body = b"x" * (70 * 1024)
    chunks = [event(Kind.IO_CHUNK, stream=2, body=body)._replace(sequence=n) for n in (9, 10, 11)]
    chunks[1] = chunks[1]._replace(offset=len(body))
    chunks[2] = chunks[2]._replace(offset=2 * len(body))
    end = event(Kind.RECORD_SEALED, {})._replace(sequence=12)
    contents = [content_of(each) for each in (*chunks, end, end._replace(sequence=13))]
    pieces = list(into.rows(contents))
    assert [piece.count(body) for piece in pieces] == [2, 1]
    assert (into.sequence, into.stored, into.source_ended) == (12, 4, True)
    assert into.sealed == end
    assert into.stored_bytes == sum(map(len, contents[:4]))


@pytest.mark.parametrize(("told", "ended"), [({"totals": {}}, True), ({"totals": 1}, False)])
def test_a_source_has_ended_once_it_tells_its_totals(told: dict[str, Any], ended: bool) -> None:
    into = batch(source_ended=False)
    stored(into, event(Kind.RUNTIME_STATE_CHANGED, told))
    assert into.source_ended is ended
    stored(into, event(999)._replace(sequence=10))
    assert not into.source_ended
