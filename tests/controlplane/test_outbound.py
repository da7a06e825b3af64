"""Exchanges with other systems: what is sent, what is repeated, what is told of a failure."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from controlplane.security.outbound import Answer, Outbound, OutboundError, OutboundReason
from tests.registries.certificates import certificate
from tests.registries.fake_registry import FakeRegistry, answer, in_turn, trickle
from tests.stack.free_ports import free_port
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

LIMIT = 1000


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    """A system that answers 500 until the test says otherwise."""
    fake = FakeRegistry()
    yield fake
    fake.close()


def outbound(url: str, **values: object) -> Outbound:
    """Return what asks the system there, with much time for an answer."""
    chosen: dict[str, object] = {
        "upstream": "registry",
        "connect_timeout": 30,
        "read_timeout": 30,
        "total_timeout": 60,
        "extra_ca_file": None,
        **values,
    }
    return Outbound(url, **chosen)  # type: ignore[arg-type] # what a test says of them


def send(client: Outbound, method: str = "GET", **values: object) -> Answer:
    """Send a request for ``/x``."""
    chosen: dict[str, object] = {"headers": {}, "limit": LIMIT, **values}
    return client.send(method, "/x", **chosen)  # type: ignore[arg-type]


def failed(call: Callable[[], object]) -> OutboundError:
    """Return why there is no answer."""
    with pytest.raises(OutboundError) as caught:
        call()
    assert str(caught.value) == caught.value.detail
    assert "127.0.0.1" not in caught.value.detail + caught.value.cause
    return caught.value


def test_an_answer_is_given_as_it_was_sent(fake: FakeRegistry) -> None:
    fake.behaviour = answer(418, b"\x1f\x8bbytes", content_encoding="gzip", x_kind="tea")
    client = outbound(fake.url + "//", headers={"X-Always": "a"})
    assert client.base_url == fake.url

    got = send(client, "POST", headers={"X-Now": "b"}, content=b"body")

    assert (got.status, got.content, got.headers["x-kind"]) == (418, b"\x1f\x8bbytes", "tea")
    ((method, path, headers),) = fake.requests
    assert (method, path, headers["content-length"]) == ("POST", "/x", "4")
    sent = [headers[name] for name in ("x-always", "x-now", "accept-encoding")]
    assert sent == ["a", "b", "identity"]


def test_proxies_and_accounts_of_the_environment_are_not_used(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.behaviour = answer(200)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    assert send(outbound(fake.url)).status == 200

    ((_, _, headers),) = fake.requests
    assert "authorization" not in headers


def test_a_redirect_is_an_answer_and_is_not_followed(fake: FakeRegistry) -> None:
    fake.behaviour = answer(302, b"there", location=fake.url + "/other")
    got = send(outbound(fake.url))
    assert (got.status, got.content, len(fake.requests)) == (302, b"there", 1)


def test_cookies_are_not_kept(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, set_cookie="a=b; Path=/")
    client = outbound(fake.url)
    send(client)
    send(client)
    assert ["cookie" in headers for _, _, headers in fake.requests] == [False, False]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_reading_is_asked_for_three_times_while_the_system_is_starting(
    fake: FakeRegistry, method: str, status: int
) -> None:
    fake.behaviour = in_turn(answer(status), answer(status), answer(200))
    began = time.monotonic()
    assert send(outbound(fake.url), method).status == 200
    assert time.monotonic() - began >= 0.3
    fake.requests.clear()
    fake.behaviour = in_turn(answer(status), answer(status), answer(status), answer(200))
    assert send(outbound(fake.url), method).status == status
    assert len(fake.requests) == 3


@pytest.mark.parametrize(("method", "status"), [("POST", 503), ("PUT", 502), ("GET", 500)])
def test_nothing_else_is_repeated(fake: FakeRegistry, method: str, status: int) -> None:
    fake.behaviour = in_turn(answer(status), answer(200))
    assert send(outbound(fake.url), method).status == status
    assert len(fake.requests) == 1


def test_a_body_of_the_limit_is_read_and_not_a_byte_more(fake: FakeRegistry) -> None:
    fake.behaviour = in_turn(answer(200, b"x" * LIMIT), answer(403, b"x" * (LIMIT + 1)))
    client = outbound(fake.url)
    assert send(client).content == b"x" * LIMIT
    error = failed(lambda: send(client))
    assert (error.reason, error.status) == (OutboundReason.TOO_LARGE, 403)
    assert error.detail == "The registry's answer is too large."


def test_where_nobody_listens_is_asked_again_and_then_unreachable() -> None:
    client = outbound(f"http://127.0.0.1:{free_port()}")
    began = time.monotonic()
    error = failed(lambda: send(client, "POST"))
    assert time.monotonic() - began >= 0.3
    assert (error.reason, error.status) == (OutboundReason.UNREACHABLE, None)
    assert error.detail == "The registry cannot be reached."
    assert error.cause == "ConnectionRefusedError: Connection refused"


def test_who_hangs_is_asked_once_and_left_after_the_read_time_out(fake: FakeRegistry) -> None:
    fake.behaviour = lambda request: time.sleep(2 * LONG_WAIT)
    began = time.monotonic()
    error = failed(lambda: send(outbound(fake.url, read_timeout=0.5)))
    assert time.monotonic() - began >= 0.5
    assert error.reason == OutboundReason.TIMED_OUT
    eventually(lambda: fake.requests, what="it is noted")
    assert len(fake.requests) == 1
    assert error.detail == "The registry did not answer in time."
    assert error.cause == "TimeoutError"


def test_an_answer_that_trickles_is_left_after_the_read_time_out(fake: FakeRegistry) -> None:
    fake.behaviour = trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
    began = time.monotonic()
    assert (
        failed(lambda: send(outbound(fake.url, read_timeout=0.5))).reason
        == OutboundReason.TIMED_OUT
    )
    assert time.monotonic() - began < LONG_WAIT


def test_an_answer_that_never_pauses_is_left_after_the_read_time_out(fake: FakeRegistry) -> None:
    fake.behaviour = trickle(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000, pause=0)
    error = failed(lambda: send(outbound(fake.url, read_timeout=0.3), limit=10_000_000))
    assert error.reason == OutboundReason.TIMED_OUT


def test_an_answer_that_pauses_is_left_after_the_read_time_out(fake: FakeRegistry) -> None:
    """Each byte of it comes within the time-out, the last one does not."""

    def behave(request: BaseHTTPRequestHandler) -> None:
        time.sleep(0.7)
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        time.sleep(0.9)
        with suppress(OSError):  # the client has gone
            request.wfile.write(b"Content-Length: 0\r\n\r\n")

    fake.behaviour = behave
    error = failed(lambda: send(outbound(fake.url, read_timeout=1)))
    assert error.reason == OutboundReason.TIMED_OUT


def test_after_the_deadline_nothing_is_asked(fake: FakeRegistry) -> None:
    client = outbound(fake.url)
    error = failed(lambda: send(client, until=time.monotonic()))
    assert (error.reason, fake.requests) == (OutboundReason.TIMED_OUT, [])


def test_a_deadline_is_so_far_away_as_it_was_said() -> None:
    before = time.monotonic()
    left = outbound("http://127.0.0.1:1", total_timeout=7).deadline() - before
    assert 7 <= left < 60


def test_the_deadline_ends_the_wait_for_an_answer(fake: FakeRegistry) -> None:
    fake.behaviour = lambda request: time.sleep(2 * LONG_WAIT)
    client = outbound(fake.url, read_timeout=600, connect_timeout=600)
    error = failed(lambda: send(client, until=time.monotonic() + 0.9))
    assert error.reason == OutboundReason.TIMED_OUT
    eventually(lambda: fake.requests, what="it is noted")
    assert len(fake.requests) == 1


def test_connecting_and_reading_share_one_deadline(tmp_path: Path) -> None:
    """Each of them is done before the time of all is over, both together are not."""
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    def serve() -> None:
        with suppress(OSError):  # the client has gone
            sock, _ = listener.accept()
            time.sleep(0.6)
            with context.wrap_socket(sock, server_side=True) as tls:
                tls.recv(10_000)
                time.sleep(0.6)
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        client = outbound(url, extra_ca_file=str(path))
        error = failed(lambda: send(client, until=time.monotonic() + 1))
        server.join()
    assert error.reason == OutboundReason.TIMED_OUT


def test_an_answer_that_breaks_off_is_unreachable_and_not_asked_for_again(
    fake: FakeRegistry,
) -> None:
    def hang_up(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True

    fake.behaviour = hang_up
    error = failed(lambda: send(outbound(fake.url)))
    assert (error.reason, len(fake.requests)) == (OutboundReason.UNREACHABLE, 1)
    assert error.cause.startswith("RemoteDisconnected")


def test_tls_is_trusted_by_the_operators_authority_and_by_no_other(tmp_path: Path) -> None:
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    fake = FakeRegistry(context)
    fake.behaviour = answer(200, b"secret")
    try:
        assert send(outbound(fake.url, extra_ca_file=str(path))).content == b"secret"
        assert send(outbound(fake.url.upper(), extra_ca_file=str(path))).status == 200
        error = failed(lambda: send(outbound(fake.url)))
        assert error.reason == OutboundReason.TLS_FAILED
        assert error.detail == "The registry's certificate is not trusted."
        assert error.cause.startswith("SSLCertVerificationError")
        assert len(fake.requests) == 2
    finally:
        fake.close()


def test_who_speaks_no_tls_is_told_apart_from_a_certificate(fake: FakeRegistry) -> None:
    error = failed(lambda: send(outbound(fake.url.replace("http:", "https:"))))
    assert error.reason == OutboundReason.TLS_FAILED
    assert error.detail == "A TLS connection to the registry cannot be made."


def test_connections_are_kept_open_until_they_are_closed(fake: FakeRegistry) -> None:
    peers = []

    def remember(request: BaseHTTPRequestHandler) -> None:
        peers.append(request.client_address)
        request.protocol_version = "HTTP/1.1"
        request.close_connection = False
        answer(200)(request)

    fake.behaviour = remember
    client = outbound(fake.url)
    send(client)
    send(client)
    assert peers[0] == peers[1]
    client.close()
    send(client)
    assert peers[2] != peers[1]
