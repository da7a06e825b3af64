"""The registry client against a registry that is slow, broken, lying or not there."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from registries.client import RegistryClient, RegistryError
from registries.errors import Reason
from tests.registries.fake_registry import (
    Behaviour,
    FakeRegistry,
    answer,
    endless,
    in_turn,
    trickle,
)
from tests.registries.images import DOCKER_MANIFEST, GONE, OCI_INDEX, OCI_MANIFEST, digest_of
from tests.stack.free_ports import free_port
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT


def client_of(
    fake: FakeRegistry, *, read: float = LONG_WAIT, total: float = LONG_WAIT, **account: str
) -> RegistryClient:
    """Return a client of the fake registry that waits so many seconds for an answer."""
    return RegistryClient(
        fake.url,
        connect_timeout=LONG_WAIT,
        read_timeout=read,
        total_timeout=total,
        username=account.get("username"),
        password=account.get("password"),
    )


def failure(call: Callable[[], object]) -> RegistryError:
    """Return the error of a call, which tells nothing that is not for its reader."""
    with pytest.raises(RegistryError) as caught:
        call()
    error = caught.value
    assert error.status == 502
    for hidden in ("127.0.0.1", "http://", "Traceback", "urllib3", "hunter2"):
        assert hidden not in error.detail
    return error


def test_a_registry_nobody_runs_cannot_be_reached() -> None:
    client = RegistryClient(
        f"http://127.0.0.1:{free_port()}",
        connect_timeout=LONG_WAIT,
        read_timeout=LONG_WAIT,
        total_timeout=LONG_WAIT,
    )
    assert "reached" in failure(client.ping).detail


def test_a_registry_that_does_not_answer_is_left_in_time(fake: FakeRegistry) -> None:
    fake.behaviour = lambda request: time.sleep(2 * LONG_WAIT)
    started = time.monotonic()
    assert "in time" in failure(client_of(fake, read=0.5).ping).detail
    assert time.monotonic() - started < LONG_WAIT


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x" * 1000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 150,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
    ],
    ids=["a header", "headers", "interim answers"],
)
def test_headers_that_trickle_are_left_in_time(fake: FakeRegistry, sent: bytes) -> None:
    fake.behaviour = trickle(sent)
    started = time.monotonic()
    assert failure(client_of(fake, read=0.5).ping).reason is Reason.TIMED_OUT
    assert time.monotonic() - started < LONG_WAIT
    eventually(lambda: fake.requests, what="it is noted")
    assert len(fake.requests) == 1


def test_a_body_that_trickles_is_left_in_time(fake: FakeRegistry) -> None:
    def behave(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "2000")
        request.end_headers()
        trickle(b"x" * 1000)(request)

    fake.behaviour = behave
    started = time.monotonic()
    assert failure(client_of(fake, read=0.5).ping).reason is Reason.TIMED_OUT
    assert time.monotonic() - started < LONG_WAIT


def test_repetitions_and_pages_end_in_time_together(fake: FakeRegistry) -> None:
    def slowly(status: int, **headers: str) -> Behaviour:
        def behave(request: BaseHTTPRequestHandler) -> None:
            time.sleep(0.3)
            answer(status, b"{}", **headers)(request)

        return behave

    fake.behaviour = slowly(503)
    started = time.monotonic()
    assert failure(client_of(fake, total=0.5).ping).reason is Reason.TIMED_OUT
    fake.behaviour = lambda request: slowly(
        200, Link=f'</v2/a/tags/list?last={len(fake.requests)}>; rel="next"'
    )(request)
    error = failure(lambda: client_of(fake, total=0.5).list_tags("a"))
    assert error.reason is Reason.TIMED_OUT
    assert time.monotonic() - started < LONG_WAIT


@pytest.mark.parametrize("status", [200, 307, 401, 404, 503])
def test_a_body_without_end_is_read_to_the_limit_whatever_the_status(
    fake: FakeRegistry, status: int
) -> None:
    fake.behaviour = endless(status, Location="/elsewhere")
    started = time.monotonic()
    error = failure(lambda: client_of(fake).list_extensions())
    assert (error.reason, error.upstream_status) == (Reason.TOO_LARGE, status)
    assert time.monotonic() - started < LONG_WAIT
    assert len(fake.requests) == 1


def test_an_answer_that_is_too_large_is_not_read(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, b"x" * (5 * 1024 * 1024))
    assert "too large" in failure(lambda: client_of(fake).get_manifest("a", "v1")).detail


def test_an_answer_that_breaks_off_is_a_failure(fake: FakeRegistry) -> None:
    def break_off(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "2000")
        request.end_headers()
        request.wfile.write(b"{")
        request.wfile.flush()
        request.connection.shutdown(socket.SHUT_RDWR)

    fake.behaviour = break_off
    failure(lambda: client_of(fake).get_manifest("a", "v1"))


def test_a_server_error_names_its_status_after_a_reading_was_repeated(fake: FakeRegistry) -> None:
    fake.behaviour = answer(503, b"secret internals")
    error = failure(client_of(fake).ping)
    assert error.upstream_status == 503
    assert "503" in error.detail
    assert len(fake.requests) == 3


def test_a_registry_that_recovers_is_not_an_error(fake: FakeRegistry) -> None:
    fake.behaviour = in_turn(answer(503), answer(200, b"{}"))
    client_of(fake).ping()


def test_writing_is_not_repeated(fake: FakeRegistry) -> None:
    fake.behaviour = answer(503)
    failure(lambda: client_of(fake).delete_manifest("a", GONE))
    assert len(fake.requests) == 1


def test_the_account_is_sent_and_a_redirect_does_not_carry_it_away(fake: FakeRegistry) -> None:
    elsewhere = FakeRegistry()
    fake.behaviour = answer(307, Location=f"{elsewhere.url}/v2/")
    client = client_of(fake, username="joe", password="hunter2")
    error = failure(client.ping)
    assert error.upstream_status == 307
    assert "redirect" in error.detail
    assert elsewhere.requests == []
    expected = "Basic " + base64.b64encode(b"joe:hunter2").decode()
    assert fake.requests[0][2]["authorization"] == expected
    elsewhere.close()


def test_a_refused_account_is_a_failure_with_the_registrys_status(fake: FakeRegistry) -> None:
    fake.behaviour = answer(401, WWW_Authenticate='Basic realm="x"')
    assert failure(client_of(fake).ping).upstream_status == 401


def test_an_account_beyond_latin_1_is_sent_as_utf_8(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, b"{}")
    client_of(fake, username="łucja", password="h€llo").ping()
    expected = "Basic " + base64.b64encode("łucja:h€llo".encode()).decode()
    assert fake.requests[0][2]["authorization"] == expected


def test_all_manifest_formats_are_accepted(fake: FakeRegistry) -> None:
    fake.behaviour = answer(404)
    assert client_of(fake).head_manifest("a", "v1") is None
    asked = set(fake.requests[0][2]["accept"].split(", "))
    assert asked == {
        DOCKER_MANIFEST,
        DOCKER_MANIFEST.replace("manifest.v2", "manifest.list.v2"),
        OCI_MANIFEST,
        OCI_INDEX,
        OCI_MANIFEST.replace("image", "artifact"),
    }


@pytest.mark.parametrize("stated", [GONE, "sha256:short", ""])
def test_a_manifest_that_is_not_what_its_digest_says_is_refused(
    fake: FakeRegistry, stated: str
) -> None:
    fake.behaviour = answer(200, b"{}", Docker_Content_Digest=stated)
    client = client_of(fake)
    failure(lambda: client.get_manifest("a", digest_of(b"other")))
    if stated:
        failure(lambda: client.get_manifest("a", "v1"))
    else:
        assert client.head_manifest("a", "v1") == digest_of(b"{}")


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"not json",
        b"\xff{}",
        b'{"layers": [{"digest": "../../x"}]}',
        b'{"config": 7}',
        b"[" * 100_000,
    ],
)
def test_a_manifest_that_makes_no_sense_is_not_copied(fake: FakeRegistry, content: bytes) -> None:
    fake.behaviour = answer(200, content, Content_Type=OCI_MANIFEST)
    failure(lambda: client_of(fake).copy("a", digest_of(content), "b", "v1"))
    assert {method for method, _, _ in fake.requests} == {"GET"}


def test_a_registry_that_shares_no_blobs_gets_no_manifest_and_keeps_no_upload(
    fake: FakeRegistry,
) -> None:
    content = json.dumps({"config": {"digest": GONE}, "layers": []}).encode()

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "HEAD":
            answer(404)(request)
        elif request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        elif request.command == "POST":
            answer(202, Location="/v2/b/blobs/uploads/42?_state=x")(request)
        else:
            answer(204)(request)

    fake.behaviour = behave
    assert not client_of(fake).copy("a", digest_of(content), "b", "v1")
    assert [(method, path) for method, path, _ in fake.requests[2:]] == [
        ("POST", f"/v2/b/blobs/uploads/?mount={GONE}&from=a"),
        ("DELETE", "/v2/b/blobs/uploads/42?_state=x"),
    ]


def test_an_upload_that_is_said_to_be_elsewhere_is_not_touched(fake: FakeRegistry) -> None:
    elsewhere = FakeRegistry()
    content = json.dumps({"config": {"digest": GONE}, "layers": []}).encode()

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "HEAD":
            answer(404)(request)
        elif request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        else:
            answer(202, Location=f"{elsewhere.url}/v2/b/blobs/uploads/42")(request)

    fake.behaviour = behave
    assert not client_of(fake).copy("a", digest_of(content), "b", "v1")
    assert elsewhere.requests == []
    elsewhere.close()


def test_a_registry_that_stores_something_else_is_caught(fake: FakeRegistry) -> None:
    content = b'{"layers": []}'

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        else:
            answer(201, Docker_Content_Digest=GONE)(request)

    fake.behaviour = behave
    failure(lambda: client_of(fake).copy("a", digest_of(content), "a", "v1"))


def test_cookies_are_not_kept(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, b"{}", Set_Cookie="a=b")
    client = client_of(fake)
    client.ping()
    client.ping()
    assert "cookie" not in fake.requests[1][2]
