"""Streams over real sockets from a real gunicorn: live, resumed, stuck, restarted."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runs.models import Run
from tests.api_process import ApiProcess, api_process
from tests.runs.event_stream import Follower, Received
from tests.runs.record_factory import Source, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(tmp_path: Path, transactional_db: None) -> Iterator[ApiProcess]:
    """A server with what is customary, but for the time that a reader may take nothing."""
    with api_process(
        tmp_path / "api.log",
        SVC_API_WRITE_TIMEOUT_MS="3000",
        SVC_API_MAX_CONNECTIONS_PER_ADDRESS="60",
    ) as process:
        yield process


def path(run: Run, query: str = "") -> str:
    return f"/v1/runs/{run.pk}/stream{query}"


def begun(run: Run | None = None) -> tuple[Run, Source, int]:
    """Return a run that has begun, who writes its record, and its process."""
    run = run or make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    source.append()
    return run, source, process


def until(follower: Follower, done: Callable[[list[Received]], bool]) -> list[Received]:
    """Return the events that come until ``done`` of them, which have to."""
    found: list[Received] = []
    while not done(found):
        more = follower.receive()
        assert more is not None, f"the stream ended after {[each.id for each in found]}"
        found += more
    return found


def end(source: Source, process: int) -> None:
    source.exited(process)
    source.sealed()
    source.append()


def test_output_is_sent_as_it_is_recorded_and_the_end_closes(api: ApiProcess) -> None:
    run, source, process = begun()
    with Follower(api.port, path(run)) as follower:
        assert len(until(follower, lambda found: len(found) >= 2)) == 2
        took = []
        for number in range(20):
            line = f"{number}\n".encode()
            source.output(process, line)
            source.append()
            began = time.monotonic()
            (event,) = until(follower, bool)
            took.append(time.monotonic() - began)
            assert base64.b64decode(event.json["contentBase64"]) == line
        # Each was announced: nobody waited for the next look, which comes after ten seconds.
        assert max(took) < 5
        end(source, process)
        rest = list(follower.events())
    assert [event.event for event in rest] == ["event", "event", "end"]
    assert rest[-1].json["status"] == "completed"


def test_the_head_says_what_proxies_and_browsers_need(api: ApiProcess) -> None:
    run, _, _ = begun()
    with Follower(api.port, path(run)) as follower:
        assert follower.read_head() == 200
        told = follower.head.lower()
        for header in (
            b"content-type: text/event-stream",
            b"cache-control: no-store",
            b"x-accel-buffering: no",
            b"connection: close",
            b"x-request-id: ",
        ):
            assert header in told


def test_faults_are_problems_and_keep_the_connection(api: ApiProcess) -> None:
    run, _, _ = begun()
    status, body = api.get(path(run, "?after=5"))
    assert (status, b'"invalid-cursor"' in body) == (400, True)
    status, body = api.get("/v1/runs/019af2c0-0000-7000-8000-00000000000a/stream")
    assert (status, b'"run-not-found"' in body) == (404, True)
