"""The stream of a run that has ended, and of places in it: what is sent, and what is refused."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

import pytest

from controlplane.http.server_sent_events import frame
from runs.agent.record.frames import Kind, Stream
from runs.models import Run, RunHead
from runs.record import retention
from runs.streaming import event_pages as pages
from runs.streaming.of_run import RunSource
from tests.conftest import OWNER, Api
from tests.runs.record_factory import Source, make_run, record
from tests.runs.streaming.event_stream import Received, received

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run()


def path(run: Run, query: str = "") -> str:
    return f"/v1/runs/{run.pk}/stream?{query}"


def follow(api: Api, run: Run, query: str = "", last_id: str = "") -> list[Received]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    return received(api.get(path(run, query), headers=headers).content)


def ids(events: Sequence[Received]) -> list[str]:
    return [event.id for event in events]


def test_a_run_that_has_ended_is_replayed_and_the_stream_ends(api: Api, run: Run) -> None:
    record(run, [b"hello\n", b"\xff\x00world"])
    events = follow(api, run)
    assert ids(events) == [*"12345678"]
    assert [event.event for event in events[2:4]] == ["output", "output"]
    assert {event.event for event in events[:2] + events[4:-1]} == {"event"}
    items = api.get(f"/v1/runs/{run.pk}/timeline").body["items"]
    shown = [event.json for event in events[:-1]]
    contents = [base64.b64decode(each.pop("contentBase64")) for each in shown[2:4]]
    assert shown == items
    assert contents == [b"hello\n", b"\xff\x00world"]
    assert events[-1].event == "end"
    assert events[-1].json == api.get(f"/v1/runs/{run.pk}").body


def test_the_answer_says_that_nobody_keeps_or_collects_it(api: Api, run: Run) -> None:
    record(run)
    headers = api.get(path(run)).headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("place", range(7))
def test_after_and_last_event_id_go_on_behind_the_same_event(
    api: Api, run: Run, place: int
) -> None:
    record(run)
    expected = [str(number) for number in range(place + 1, 8)]
    assert ids(follow(api, run, f"after={place}")) == expected
    assert ids(follow(api, run, "after=1", str(place))) == expected


def test_after_latest_leaves_out_what_was_before(api: Api, run: Run) -> None:
    record(run)
    assert [event.event for event in follow(api, run, "after=latest")] == ["end"]


def test_who_has_seen_the_end_is_told_to_stay_away(api: Api, run: Run) -> None:
    record(run)
    end = follow(api, run)[-1]
    api.get(path(run), headers={"Last-Event-ID": end.id}, expect=204)


@pytest.mark.parametrize("place", ["9", "x", "-1", "1.5", "9" * 19, "9" * 30, "\u0661"])
def test_a_place_that_is_none_of_the_record_is_refused(api: Api, run: Run, place: str) -> None:
    record(run)
    answer = api.get(path(run, f"after={place}"), expect=400)
    assert answer.codes == {"after": "invalid-cursor"}


def test_a_header_that_is_no_place_is_named_as_the_fault(api: Api, run: Run) -> None:
    answer = api.get(path(run), headers={"Last-Event-ID": "no"}, expect=400)
    assert answer.codes == {"Last-Event-ID": "invalid-cursor"}


def test_faults_before_the_stream_are_problems(api: Api, run: Run) -> None:
    absent = "019af2c0-0000-7000-8000-00000000000a"
    assert api.get(f"/v1/runs/{absent}/stream", expect=404).body["code"] == "run-not-found"
    api.get(path(run, "ownerUserId=somebody"), expect=404)
    record(run)
    api.get(path(run, f"ownerUserId={OWNER}"))
    assert api.get(path(run, "afterr=1"), expect=400).codes == {"afterr": "unknown-parameter"}


def remove(run: Run) -> None:
    RunHead.objects.get(pk=run.number)
    removed = retention.prune([run.number])
    assert removed.runs == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("query", ["", "after=3"])
def test_a_record_that_was_removed_is_told_once_and_ends(api: Api, query: str) -> None:
    run = make_run()
    record(run)
    remove(run)
    told, end = follow(api, run, query)
    assert (told.event, end.event) == ("resync", "end")
    assert told.json["reason"] == "record-removed"
    assert told.json["after"] == (query[-1:] or "0")
    assert end.id == "7"
    api.get(path(run, "after=7"), expect=204)


def test_a_run_that_is_not_recorded_tells_its_end(api: Api, run: Run) -> None:
    RunHead.objects.filter(pk=run.number).delete()
    Run.objects.filter(pk=run.pk).update(recorded=False)
    Run.objects.filter(pk=run.pk).settle(Run.Status.COMPLETED, exit_code=0)
    (end,) = follow(api, run)
    assert (end.event, end.id, end.json["status"]) == ("end", "1", "completed")
    api.get(path(run, "after=1"), expect=204)


def chunks(run: Run, sizes: Sequence[int]) -> bytes:
    """Record a program that writes pieces of these sizes; return all that it wrote."""
    output = [bytes(index % 251 for index in range(size)) for size in sizes]
    record(run, output)
    return b"".join(output)


def written(events: Sequence[Received]) -> bytes:
    parts = [event.json for event in events if event.event == "output"]
    places = [int(part["ref"]["streamOffset"]) for part in parts]
    assert places == sorted(places)
    return b"".join(base64.b64decode(part["contentBase64"]) for part in parts)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1_500_000])
def test_output_of_any_size_comes_byte_for_byte(api: Api, run: Run, size: int) -> None:
    content = chunks(run, [size, 10, size])
    assert written(follow(api, run)) == content


def test_more_events_than_a_page_has_come_in_order(api: Api, run: Run) -> None:
    content = chunks(run, [3] * (2 * pages.PAGE_EVENTS + 5))
    events = follow(api, run)
    assert ids(events) == [str(number) for number in range(1, len(events) + 1)]
    assert written(events) == content
    middle = pages.PAGE_EVENTS - 3
    assert events[middle:] == follow(api, run, f"after={middle}")


def test_numbers_that_are_missing_hold_nothing_up(api: Api, run: Run) -> None:
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    source.output(process, b"a")
    source.sequence += 1000
    source.output(process, b"b")
    source.exited(process)
    source.sealed()
    source.append()
    assert ids(follow(api, run)) == ["1", "2", "3", "1004", "1005", "1006", "1007"]


def test_a_meta_of_several_lines_stays_one_event(api: Api, run: Run) -> None:
    source = Source(run)
    source.open()
    source.started()
    source.event(Kind.COVERAGE_CHANGED, b'{\n"source":\r"files",\r\n"state": "off"\n\n}')
    source.sealed()
    source.append()
    second = follow(api, run)[1]
    assert second.json["ref"] == {"source": "files", "state": "off"}


def test_a_frame_has_a_line_for_each_line_of_its_data() -> None:
    assert frame("x", "a\r\nb\rc\n", id="5") == (
        b"id: 5\nevent: x\ndata: a\ndata: b\ndata: c\ndata: \n\n"
    )


def test_a_terminal_is_sent_with_its_input(api: Api, run: Run) -> None:
    source = Source(run)
    source.open()
    source.started()
    process = source.process(streams=["pty_output"])
    source.output(process, b"$ ", stream=Stream.PTY_OUTPUT)
    source.output(process, b"ls\r", stream=Stream.PTY_INPUT)
    source.exited(process)
    source.sealed()
    source.append()
    outputs = [event.json["ref"]["stream"] for event in follow(api, run) if event.event == "output"]
    assert outputs == ["pty", "ptyInput"]


def test_a_page_that_was_begun_goes_on_when_an_earlier_one_is_kept_late(run: Run) -> None:
    source = Source(run)
    source.open()
    process = source.process()
    source.output(process, b"before")
    source.append()
    earlier = pages._read(run.pk, run.number, 0)
    assert earlier is not None
    source.output(process, b"a" * 5000)
    source.output(process, b"b" * 5000)
    source.append()
    stream = RunSource(run)
    whole = pages._read(run.pk, run.number, 0)
    assert whole is not None
    told = stream.read(len(earlier.data) + 8000, time.monotonic()).data
    assert len(earlier.data) < len(told) < len(whole.data)

    # As by a thread that was slow between reading and keeping, after the page had to make room.
    pages.PAGES._pages.clear()
    pages.PAGES._keep((run.pk, 0), earlier)

    while len(told) < len(whole.data):
        piece = stream.read(4000, time.monotonic())
        assert piece.data, "it goes round and round"
        told += piece.data
    assert told == whole.data


def test_of_two_pages_the_one_that_was_read_later_is_kept(run: Run) -> None:
    source = Source(run)
    source.open()
    source.append()
    earlier = pages._read(run.pk, run.number, 0)
    source.process()
    source.append()
    later = pages._read(run.pk, run.number, 0)
    assert earlier is not None
    assert later is not None
    kept = pages.Pages()
    for page in (later, earlier):
        kept._keep((run.pk, 0), page)
    assert kept.page(run.pk, run.number, 0, since=later.read_at) is later
