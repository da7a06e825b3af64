"""Scrollback is the stream byte for byte, and says what it does not hold."""

from __future__ import annotations

import base64
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.agent.record.frames import Kind, Stream
from runs.models import Run
from runs.record.reading.scrollback import HIDDEN, open_stream, scrollback
from runs.record.reading.timeline import MAX_SEQUENCE
from tests.conftest import Answer, Api
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db
BYTES = {"accept": "application/octet-stream"}


def path(run: Run, query: str = "stream=stdout") -> str:
    return f"/v1/runs/{run.pk}/scrollback?{query}"


def content(answer: Answer) -> bytes:
    return base64.b64decode(answer.body["contentBase64"], validate=True)


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    source.started()
    return source


def test_every_byte_comes_back(api: Api, run: Run) -> None:
    every = bytes(range(256)) * 3
    record(run, [every, b"\xff\xfe", b"\0", "é".encode()[:1]])
    whole = every + b"\xff\xfe\0" + "é".encode()[:1]

    answer = api.get(path(run))

    assert content(answer) == whole
    assert answer.body["byteCount"] == len(whole)
    assert answer.body["missing"] == []
    assert answer.body["complete"] is True
    assert answer.body["processId"] == "1"
    raw = api.get(path(run), headers=BYTES)
    assert raw.content == whole
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["x-missing-count"] == "0"
    assert raw.headers["x-stream-complete"] == "true"
    assert "x-missing-ranges" not in raw.headers
    assert "Accept" in raw.headers["vary"]


@pytest.mark.parametrize(
    "accept",
    ["*/*", "application/json", "text/html, */*;q=0.1", "application/octet-stream;q=0", "", ";;,",
     "application/octet-stream;q=0.5, application/json", "application/octet-stream;q=x"],
)  # fmt: skip
def test_bytes_are_only_for_those_who_ask_for_them(api: Api, run: Run, accept: str) -> None:
    record(run, [b"a"])
    assert content(api.get(path(run), headers={"accept": accept})) == b"a"


def test_the_streams_of_a_process_are_apart(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    for stream in (Stream.STDOUT, Stream.STDERR, Stream.STDIN):
        source.output(process, f"{stream}".encode(), stream=stream)
    source.append()
    for name, stream in (("stdout", 2), ("stderr", 3), ("stdin", 1)):
        assert content(api.get(path(run, f"stream={name}"))) == f"{stream}".encode()
    assert content(api.get(path(run, "stream=pty"))) == b""


def test_a_stream_that_goes_on_is_not_complete(api: Api, run: Run, source: Source) -> None:
    source.output(source.process(), b"so far")
    source.append()
    body = api.get(path(run)).body
    assert body["byteCount"] == 6
    assert body["complete"] is False
    assert body["missing"] == []


def test_no_output_differs_from_none_known(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.append()
    assert api.get(path(run)).body["complete"] is False
    source.closed(process)
    source.append()
    answer = api.get(path(run)).body
    assert (answer["byteCount"], answer["complete"]) == (0, True)


def test_a_run_without_a_process_has_no_output_yet(api: Api, run: Run) -> None:
    body = api.get(path(run)).body
    assert "processId" not in body
    assert (body["byteCount"], body["complete"]) == (0, False)
    assert api.get(path(run), headers=BYTES).content == b""


def test_the_process_is_named_where_there_are_several_leaders(
    api: Api, run: Run, source: Source
) -> None:
    first, second = source.process(), source.process()
    child = source.process(leader=False)
    source.output(first, b"1")
    source.output(second, b"2")
    source.output(child, b"3")
    source.append()
    assert api.get(path(run), expect=400).codes == {"processId": "required"}
    for number in (first, second, child):
        query = f"stream=stdout&processId={number}"
        assert content(api.get(path(run, query))) == str(number).encode()


def test_the_leader_is_taken_that_has_such_a_stream(api: Api, run: Run, source: Source) -> None:
    shell = source.process(["bash", "-l"], streams=["pty"])
    source.output(shell, b"$ ", stream=Stream.PTY_OUTPUT)
    source.output(shell, b"ls\r", stream=Stream.PTY_INPUT)
    for body in (b"one", b"two"):
        source.output(source.process(), body)
    source.append()
    base = f"/v1/runs/{run.pk}/scrollback"

    for stream in ("pty", "ptyInput"):
        assert api.get(f"{base}?stream={stream}").body["processId"] == str(shell)
    answer = api.get(f"{base}?stream=stdout", expect=400)
    assert answer.codes == {"processId": "required"}
    assert "choose one: 2, 3." in answer.body["errors"][0]["detail"]


@pytest.mark.parametrize("number", ["0", "2", "2147483647", "2147483648", str(2**63 - 1)])
def test_an_unknown_process_is_a_fault(api: Api, run: Run, number: str) -> None:
    record(run)
    query = f"stream=stdout&processId={number}"
    assert api.get(path(run, query), expect=400).codes == {"processId": "unknown-process"}


def test_dropped_bytes_are_named_with_their_reason(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, b"abc")
    source.event(
        Kind.TELEMETRY_DROPPED,
        {"toOffset": 10, "bytes": 7, "reason": "spool-full"},
        process=process,
        stream=Stream.STDOUT,
        offset=3,
    )
    source.output(process, b"xyz", offset=10)
    source.closed(process)
    source.append()

    answer = api.get(path(run))

    assert content(answer) == b"abcxyz"
    assert answer.body["missing"] == [{"fromOffset": "3", "toOffset": "10", "reason": "spool-full"}]
    assert answer.body["complete"] is False
    raw = api.get(path(run), headers=BYTES)
    assert raw.content == b"abcxyz"
    assert raw.headers["x-missing-ranges"] == "3-10"
    assert raw.headers["x-stream-complete"] == "false"
    behind = api.get(path(run, "stream=stdout&fromOffset=10"))
    assert (content(behind), behind.body["missing"]) == (b"xyz", [])
    inside = api.get(path(run, "stream=stdout&fromOffset=5"))
    assert inside.body["missing"][0]["fromOffset"] == "5"


def test_bytes_that_are_told_to_be_missing_several_times_are_named_once(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process()
    for start, end, reason in ((0, 6, "first"), (4, 10, "later"), (1, 5, "inside"), (10, 12, "x")):
        told = {"toOffset": end, "bytes": end - start, "reason": reason}
        source.event(
            Kind.TELEMETRY_DROPPED, told, process=process, stream=Stream.STDOUT, offset=start
        )
    source.output(process, b"here", offset=12)
    source.append()

    answer = api.get(path(run))

    named = [(each["fromOffset"], each["toOffset"]) for each in answer.body["missing"]]
    reasons = [each["reason"] for each in answer.body["missing"]]
    assert named == [("0", "6"), ("6", "10"), ("10", "12")]
    assert reasons == ["first", "later", "x"]
    assert content(answer) == b"here"


def test_a_stream_goes_on_behind_a_long_hole(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, b"abc")
    source.output(process, b"xyz", offset=2**40)
    source.append()
    answer = api.get(path(run))
    assert content(answer) == b"abcxyz"
    assert [hole["toOffset"] for hole in answer.body["missing"]] == [str(2**40)]
    assert api.get(path(run), headers=BYTES).content == b"abcxyz"


def test_bytes_lost_with_events_are_named(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, b"abc")
    source.append()
    source.output(process, b"lost")
    source.waiting.clear()
    source.output(process, b"xyz")
    source.append()
    answer = api.get(path(run))
    assert content(answer) == b"abcxyz"
    (hole,) = answer.body["missing"]
    assert (hole["fromOffset"], hole["toOffset"]) == ("3", "7")


def test_a_lost_end_is_missing_once_the_totals_tell_of_it(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process()
    source.output(process, b"abc")
    source.sealed(streams=[{"process": 1, "stream": "stdout", "bytes": 9, "dropped": 0}])
    source.append()
    answer = api.get(path(run))
    (hole,) = answer.body["missing"]
    assert (hole["fromOffset"], hole["toOffset"]) == ("3", "9")
    assert answer.body["complete"] is False


def test_an_abandoned_stream_is_not_complete(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, b"abc")
    source.closed(process, reason="abandoned")
    source.append()
    assert api.get(path(run)).body["complete"] is False
    assert api.get(path(run), headers=BYTES).headers["x-stream-complete"] == "false"


def test_hidden_input_is_missing_and_no_loss(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, b"ls\n", stream=Stream.PTY_INPUT)
    source.event(
        Kind.INPUT_HIDDEN, {"bytes": 6}, process=process, stream=Stream.PTY_INPUT, offset=3
    )
    source.output(process, b"\n", stream=Stream.PTY_INPUT, offset=9)
    source.append()
    answer = api.get(path(run, "stream=ptyInput"))
    assert content(answer) == b"ls\n\n"
    assert answer.body["missing"] == [{"fromOffset": "3", "toOffset": "9", "reason": HIDDEN}]
    assert api.get(f"/v1/runs/{run.pk}/loss").body["spans"] == []


def test_a_stream_is_shown_as_it_was_at_an_event(api: Api, run: Run, source: Source) -> None:
    process = source.process()  # event 2
    for body in (b"a", b"b", b"c"):  # events 3 to 5
        source.output(process, body)
    source.closed(process)
    source.append()
    for sequence, known in ((2, b""), (3, b"a"), (4, b"ab"), (5, b"abc"), (6, b"abc")):
        answer = api.get(path(run, f"stream=stdout&atSequence={sequence}"))
        assert content(answer) == known
        assert answer.body["complete"] is (sequence == 6)
        assert answer.body["missing"] == []


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7, 100])
def test_pieces_fit_together(api: Api, run: Run, limit: int) -> None:
    record(run, [b"abc", b"d", b"efghi"])
    found, offset = b"", "0"
    for _ in range(20):
        answer = api.get(path(run, f"stream=stdout&limitBytes={limit}&fromOffset={offset}"))
        assert answer.body["fromOffset"] == offset
        found += content(answer)
        if "nextOffset" not in answer.body:
            break
        assert answer.body["complete"] is False
        offset = answer.body["nextOffset"]
    assert found == b"abcdefghi"
    assert answer.body["complete"] is True
    raw = api.get(path(run, f"stream=stdout&limitBytes={limit}&fromOffset=2"), headers=BYTES)
    assert raw.content == b"abcdefghi"[2 : 2 + limit]


def test_json_is_bounded_and_says_how_to_go_on(api: Api, run: Run) -> None:
    record(run, [b"x" * 700_000, b"y" * 700_000])
    body = api.get(path(run)).body
    assert body["byteCount"] == 1024**2
    assert body["nextOffset"] == str(1024**2)
    assert api.get(path(run, "stream=stdout&limitBytes=16777216")).body["byteCount"] == 1_400_000
    answer = api.get(path(run, "stream=stdout&limitBytes=16777217"), expect=400)
    assert answer.codes == {"limitBytes": "out-of-range"}
    limit = f"stream=stdout&limitBytes={2**63 - 1}"
    assert len(api.get(path(run, limit), headers=BYTES).content) == 1_400_000


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "stream"),
        ("stream=", "stream"),
        ("stream=STDOUT", "stream"),
        ("stream=stdout&stream=stderr", "stream"),
        ("stream=stdout&processId=-1", "processId"),
        ("stream=stdout&processId=x", "processId"),
        ("stream=stdout&atSequence=-1", "atSequence"),
        ("stream=stdout&atSequence=9223372036854775808", "atSequence"),
        ("stream=stdout&fromOffset=1.5", "fromOffset"),
        ("stream=stdout&limitBytes=0", "limitBytes"),
        ("stream=stdout&limitBytes=9223372036854775808", "limitBytes"),
        ("stream=stdout&procesId=1", "procesId"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, run: Run, query: str, parameter: str) -> None:
    assert set(api.get(path(run, query), expect=400).codes) == {parameter}


def test_a_place_behind_the_end_holds_nothing(api: Api, run: Run) -> None:
    record(run, [b"abc"])
    body = api.get(path(run, f"stream=stdout&fromOffset={2**63 - 1}")).body
    assert (body["byteCount"], body["missing"]) == (0, [])
    assert "nextOffset" not in body


CHUNKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, start=st.integers(0, 60), limit=st.integers(1, 60))
def test_forged_offsets_give_each_place_once_and_name_the_rest(
    chunks: list[tuple[int, int]], start: int, limit: int
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    for number, (offset, length) in enumerate(chunks):
        source.output(process, bytes([65 + number]) * length, offset=offset)
    source.append()
    known = {at for offset, length in chunks for at in range(offset, offset + length)}
    end = max((offset + length for offset, length in chunks), default=0)

    view = open_stream(run.number, process, Stream.STDOUT, MAX_SEQUENCE)
    places: list[int] = []
    for offset, piece in view.chunks(start):
        places += range(offset, offset + len(piece))

    assert places == sorted(set(places))
    assert set(places) <= known
    answer = scrollback(view, start=start, limit=limit)
    shown = answer["byteCount"]
    assert shown == len(places[:limit])
    if "nextOffset" not in answer:
        missing = [
            at
            for hole in answer["missing"]
            for at in range(int(hole["fromOffset"]), int(hole["toOffset"]))
        ]
        assert sorted([*places, *missing]) == list(range(start, end))


def test_long_streams_take_the_memory_of_a_batch(run: Run, source: Source) -> None:
    process = source.process()
    for number in range(160):
        source.output(process, bytes([number]) * 262_144)
        if number % 16 == 15:
            source.append()
    source.contents.clear()
    view = open_stream(run.number, process, Stream.STDOUT, MAX_SEQUENCE)
    tracemalloc.start()
    try:
        total = sum(len(piece) for _, piece in view.chunks(0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 160 * 262_144
    assert peak < 12 * 1024**2
