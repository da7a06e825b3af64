"""Streams over real sockets from a real gunicorn: live, resumed, stuck, restarted."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from django.db import connection

from controlplane.http.stream_answers import LOOK_SECONDS
from runs.models import Run, RunHead
from runs.services import Report, update_reported
from tests.runs.record_factory import Source, make_run
from tests.runs.streaming.event_stream import Follower, Received
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.browser import browser
from tests.support.waiting import LONG_WAIT

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
        # They were announced: nobody waited for the next look, which comes after ten seconds.
        assert sorted(took)[10] < LOOK_SECONDS / 2
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


def test_a_run_without_a_record_is_heard_of_when_it_ends(api: ApiProcess) -> None:
    took = []
    for _ in range(3):
        run = make_run()
        RunHead.objects.filter(pk=run.number).delete()
        Run.objects.filter(pk=run.pk).update(recorded=False)
        run.refresh_from_db()
        with Follower(api.port, path(run)) as follower:
            assert follower.read_head() == 200
            # It is read once at the beginning, and then when something is announced.
            listening()
            began = time.monotonic()
            update_reported(run, Report(status=Run.Status.COMPLETED))
            (told,) = follower.events()
            took.append(time.monotonic() - began)
        assert (told.event, told.json["status"]) == ("end", "completed")
    assert min(took) < LOOK_SECONDS / 2


def listening() -> None:
    """Wait until the server listens for what runs announce."""
    deadline = time.monotonic() + LONG_WAIT
    with connection.cursor() as cursor:
        while True:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%' AND state = 'idle'"
            )
            if cursor.fetchone()[0]:
                return
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.02)


def test_a_request_for_the_head_alone_is_answered_and_ends(api: ApiProcess) -> None:
    run, _, _ = begun()
    with socket.create_connection(("127.0.0.1", api.port), timeout=LONG_WAIT) as client:
        client.sendall(f"HEAD {path(run)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b""
        while data := client.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1


def test_faults_are_problems_and_keep_the_connection(api: ApiProcess) -> None:
    run, _, _ = begun()
    status, body = api.get(path(run, "?after=5"))
    assert (status, b'"invalid-cursor"' in body) == (400, True)
    status, body = api.get("/v1/runs/019af2c0-0000-7000-8000-00000000000a/stream")
    assert (status, b'"run-not-found"' in body) == (404, True)


def output_of(events: list[Received]) -> bytes:
    return b"".join(
        base64.b64decode(event.json["contentBase64"]) for event in events if event.event == "output"
    )


def test_a_stuck_reader_holds_up_nobody_and_goes_on_where_it_was(api: ApiProcess) -> None:
    run, source, process = begun()
    with Follower(api.port, path(run)) as stuck:
        assert stuck.read_head() == 200
        with Follower(api.port, path(run)) as reader:
            until(reader, lambda found: len(found) >= 2)
            found = []
            for number in range(300):
                source.output(process, bytes([number % 256]) * 20_000)
                source.append()
                # It reads all the time, or it would be as slow as the other one.
                found += until(reader, bool)
            end(source, process)
            rest = list(reader.events())
        assert [int(event.id) for event in found + rest] == list(range(3, 306))
        # It has taken nothing for longer than the write timeout: what had been sent, and no more.
        deadline = time.monotonic() + LONG_WAIT
        while "slow_reader" not in api.told:
            assert time.monotonic() < deadline, f"it was not cut off: {api.told}"
            time.sleep(0.1)
        before: list[Received] = []
        # The kernel drops what it could not hand over in time; then the end is a reset.
        with suppress(ConnectionResetError):
            before.extend(stuck.events())
        if before and before[-1].event == "error":  # it had room for that
            assert before.pop().json["code"] == "slow-reader"
        assert [int(event.id) for event in before] == list(range(1, len(before) + 1))
        assert len(before) < 300
        with Follower(api.port, path(run), last_id=stuck.parser.last_id) as again:
            after = list(again.events())
        assert [int(event.id) for event in before + after] == list(range(1, 306))


def test_streams_leave_room_for_requests_and_give_theirs_back(api: ApiProcess) -> None:
    run, _, _ = begun()
    followers = [Follower(api.port, path(run)) for _ in range(30)]
    try:
        assert {follower.read_head() for follower in followers} == {200}
        refused, body = api.get(path(run))
        assert (refused, json.loads(body)["code"]) == (503, "too-many-streams")
        for _ in range(50):
            assert api.get("/healthz")[0] == 200
        with Follower(api.port, path(run), address="127.0.0.2") as other:
            assert other.read_head() == 200
        followers.pop().close()
        deadline = time.monotonic() + LONG_WAIT
        while True:
            with Follower(api.port, path(run)) as later:
                if later.read_head() == 200:
                    break
            assert time.monotonic() < deadline, "the room was not given back"
    finally:
        for follower in followers:
            follower.close()


@pytest.mark.parametrize(
    ("identity", "header", "names"),
    [
        ({"SVC_TRUSTED_OWNER_HEADER": "X-User"}, "X-User", ("usr_a", "usr_b")),
        ({}, "X-Forwarded-For", ("192.0.2.1", "192.0.2.2")),
    ],
)
def test_behind_a_proxy_each_one_has_a_share_of_the_streams(
    tmp_path: Path,
    transactional_db: None,
    identity: dict[str, str],
    header: str,
    names: tuple[str, str],
) -> None:
    where = "/v1/stream" if identity else "/v1/stream?ownerUserId=usr_a"
    limits = {"SVC_TRUSTED_PROXIES": "127.0.0.0/8", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "6"}
    with ExitStack() as stack:
        api = stack.enter_context(api_process(tmp_path / "proxied.log", **limits, **identity))
        for name in names:
            told = f"{header}: {name}\r\n"
            followers = [Follower(api.port, where, headers=told) for _ in range(5)]
            statuses = [stack.enter_context(follower).read_head() for follower in followers]
            assert sorted(statuses) == [200, 200, 200, 503, 503]


def test_a_server_that_ends_says_when_to_come_back(api: ApiProcess, tmp_path: Path) -> None:
    run, source, process = begun()
    with Follower(api.port, path(run)) as stuck, Follower(api.port, path(run)) as follower:
        before = until(follower, lambda found: len(found) >= 2)
        assert stuck.read_head() == 200
        assert api.stop() == 0
        assert "WORKER TIMEOUT" not in api.told
        assert list(follower.events()) == []
        assert follower.parser.retry == 1000
        last_id = follower.parser.last_id
    source.output(process, b"meanwhile")
    end(source, process)
    with (
        api_process(tmp_path / "next.log") as successor,
        Follower(successor.port, path(run), last_id=last_id) as follower,
    ):
        after = list(follower.events())
    assert output_of(after) == b"meanwhile"
    assert [int(event.id) for event in before + after] == list(range(1, 7))


def test_streams_outlive_a_database_that_drops_every_connection(api: ApiProcess) -> None:
    run, source, process = begun()
    with Follower(api.port, path(run)) as follower:
        until(follower, lambda found: len(found) >= 2)
        for number in range(3):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                assert cursor.fetchone()[0] > 0
            source.output(process, b"%d" % number)
            source.append()
            (event,) = until(follower, bool)
            assert base64.b64decode(event.json["contentBase64"]) == b"%d" % number
        end(source, process)
        assert [event.event for event in follower.events()] == ["event", "event", "end"]


def test_clients_that_send_on_or_close_at_once_leave_nothing(api: ApiProcess) -> None:
    run, source, process = begun()
    for _ in range(100):
        Follower(api.port, path(run)).close()
    with Follower(api.port, path(run)) as follower:
        follower.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        until(follower, lambda found: len(found) >= 2)
        follower.socket.sendall(b"x" * 100_000)
        end(source, process)
        assert [event.event for event in follower.events()] == ["event", "event", "end"]
    assert "stream_failed" not in api.told
    assert "Traceback" not in api.told


@pytest.mark.slow
def test_a_silent_stream_is_heard_every_fifteen_seconds(api: ApiProcess) -> None:
    run, _, _ = begun()
    with Follower(api.port, path(run)) as follower:
        until(follower, lambda found: len(found) >= 2)
        took = []
        for count in range(1, 3):
            began = time.monotonic()
            while follower.parser.comments < count:
                assert follower.receive() == []
            took.append(time.monotonic() - began)
        assert min(took) < 15


def test_an_owner_has_to_be_named_where_that_is_required(tmp_path: Path) -> None:
    run, _, _ = begun()
    with api_process(tmp_path / "api.log", SVC_REQUIRE_OWNER="true") as api:
        assert api.get(path(run))[0] == 400
        assert api.get(path(run, "?ownerUserId=somebody"))[0] == 404
        with Follower(api.port, path(run, f"?ownerUserId={run.owner_user_id}")) as follower:
            assert follower.read_head() == 200


def test_a_browser_follows_and_comes_back_by_itself(api: ApiProcess, tmp_path: Path) -> None:
    run, source, process = begun()
    relay = Relay(api.port)
    with relay, site() as elsewhere, browser(tmp_path / "profile") as page:
        page.open(elsewhere)
        page.evaluate(SCRIPT % json.dumps(f"http://127.0.0.1:{relay.port}{path(run)}"))
        expected = b""
        for number in range(12):
            line = f"line {number}\n".encode()
            expected += line
            source.output(process, line)
            source.append()
            page.wait_for(f"window.seen.length >= {3 + number}")
            if number % 4 == 3:
                relay.drop()
        end(source, process)
        page.wait_for("window.seen.some((each) => each.event === 'end')")
        seen = page.evaluate("window.seen")
        assert page.evaluate("window.opened") >= 4
    assert [int(each["id"]) for each in seen] == list(range(1, 18))
    parts = [json.loads(each["data"]) for each in seen if each["event"] == "output"]
    assert b"".join(base64.b64decode(part["contentBase64"]) for part in parts) == expected


class Empty(BaseHTTPRequestHandler):
    """Answers an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site() -> Iterator[str]:
    """Serve the page of another origin, as web apps have it, and give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


SCRIPT = """(() => {
    window.seen = []; window.opened = 0;
    const source = new EventSource(%s);
    source.onopen = () => { window.opened += 1; };
    for (const name of ["event", "output", "end"]) {
        source.addEventListener(name, (message) => {
            window.seen.push({event: name, id: message.lastEventId, data: message.data});
            if (name === "end") source.close();
        });
    }
})()"""


class Relay:
    """A way to the server that can be cut: a page goes through it as it does through proxies."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._ends: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.drop()
        for thread in self._threads:
            thread.join()
        for each in self._ends:
            each.close()

    def drop(self) -> None:
        """Cut every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end_ in pair:
                with suppress(OSError):
                    end_.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._pairs.append((client, server))
                self._ends += [client, server]
            for ends in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pass_on, args=ends))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
