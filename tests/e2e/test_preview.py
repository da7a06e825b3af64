"""Ports of a workspace under addresses of their own: a real workspace, gateway and API."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from controlplane.security.preview_links import TOKEN_HEADER, Grant, sign, signing_key
from runs.preview.preview_gateway import LEAVE_SECONDS
from tests.conftest import OWNER
from tests.e2e.preview_server import SERVER
from tests.stack.browser import browser
from tests.stack.preview_process import SECONDS, PreviewAccess, PreviewProcess, preview_of
from tests.stack.runs import GATEWAY_TOKEN
from tests.stack.service import GitServer, Stack
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker

PORT, OLD, OTHER, LAST, KILLED = 8081, 8082, 8083, 8084, 8085
MIB = 1024 * 1024
SENT = 20_000
OLD_SERVER = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8082)"


class Confined(PreviewProcess):
    """A gateway that may not enter the networks of others."""

    before = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


@contextlib.contextmanager
def another(
    access: PreviewAccess, kind: type[PreviewProcess], log: Path
) -> Iterator[PreviewAccess]:
    """A second gateway before the same workspace."""
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN, "SVC_PREVIEW_DOMAIN": "localhost"}
    gateway = kind(log, api=access.api, **token)
    try:
        yield replace(access, gateway=gateway)
    finally:
        gateway.stop()


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PreviewAccess]:
    """One workspace for all tests here, in which a server listens."""
    folder = tmp_path_factory.mktemp("preview")
    with preview_of(stack, git_server, run_queue, folder) as made:
        made.serve(SERVER, PORT)
        yield made


def test_requests_are_passed_on_and_answered(access: PreviewAccess) -> None:
    told = json.loads(access.ask(PORT, "/any/path?with=query&b", headers={"X-Mine": "kept"}).body)
    assert told["path"] == "/any/path?with=query&b"
    seen = dict(told["headers"])
    assert seen["x-mine"] == "kept"
    assert seen["host"] == seen["x-forwarded-host"] == access.host(PORT)
    assert (seen["x-forwarded-for"], seen["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert TOKEN_HEADER not in seen
    head = access.ask(PORT, "/bytes/1000", method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "1000")
    assert access.ask(PORT, "/none").status == 204
    lines = access.ask(PORT, "/chunks/300").body.splitlines()
    assert lines == [b"chunk %d" % number for number in range(300)]


def test_one_connection_takes_many_requests(access: PreviewAccess) -> None:
    token = access.link(PORT)["token"]
    connection = access.connect()
    for number in range(20):
        sent = {"Host": access.host(PORT), TOKEN_HEADER: token}
        connection.request("POST", "/digest", body=b"x" * number, headers=sent)
        answer = connection.getresponse()
        assert json.loads(answer.read())["size"] == number
    connection.close()


def test_a_hundred_mebibytes_go_both_ways_as_they_were(access: PreviewAccess) -> None:
    content = os.urandom(MIB) * 100
    told = json.loads(access.ask(PORT, "/digest", method="POST", body=content).body)
    right = hashlib.sha256(content).hexdigest()
    assert told == {"size": len(content), "sha256": right}
    pieces = (content[start : start + 70_000] for start in range(0, len(content), 70_000))
    told = json.loads(access.ask(PORT, "/digest", method="POST", body=pieces).body)
    assert told == {"size": len(content), "sha256": right}
    received = access.ask(PORT, f"/bytes/{100 * MIB}").body
    assert received == bytes(range(256)) * (100 * MIB // 256)


def test_a_link_sets_a_cookie_and_leads_on_without_the_token(access: PreviewAccess) -> None:
    link = access.link(PORT, path="/start?a=1&b")
    answer, cookie = access.open_link(link["url"])
    assert answer.status == 303
    assert answer.headers["location"] == f"http://{access.host(PORT)}/start?a=1&b"
    attributes = answer.headers["set-cookie"].partition(";")[2]
    assert attributes == " Path=/; Max-Age=28800; HttpOnly; SameSite=Lax"
    assert answer.headers["referrer-policy"] == "no-referrer"
    told = access.ask(PORT, "/start", token=None, headers={"Cookie": f"a=1; {cookie}; b=2"})
    assert dict(json.loads(told.body)["headers"])["cookie"] == "a=1; b=2"
    told = access.ask(PORT, "/start", token=None, headers={"Cookie": cookie})
    assert "cookie" not in dict(json.loads(told.body)["headers"])


def test_nobody_passes_without_what_is_for_this_port(access: PreviewAccess) -> None:
    link = access.link(PORT)
    _, cookie = access.open_link(link["url"])
    old = Grant(kind="link", workspace_id=access.workspace_id, port=PORT, owner=OWNER, expires_at=1)
    forged = sign(replace(old, expires_at=2**40), signing_key("somebody else's"))
    expired = sign(old, signing_key(GATEWAY_TOKEN))
    elsewhere = f"{PORT}-{access.workspace_id[:-4]}0000.localhost"
    refused = [
        (access.ask(PORT, "/", token=None), 401, "preview-link-required"),
        (access.ask(PORT, "/", token=link["token"] + "x"), 401, "preview-link-invalid"),
        (access.ask(PORT, "/", token=forged), 401, "preview-link-invalid"),
        (access.ask(PORT, "/", token=expired), 401, "preview-link-expired"),
        (access.ask(OTHER, "/", token=link["token"]), 401, "preview-link-invalid"),
        (
            access.ask(PORT, "/", host=elsewhere, token=link["token"]),
            401,
            "preview-link-invalid",
        ),
        (
            access.ask(OTHER, "/", token=None, headers={"Cookie": cookie}),
            401,
            "preview-link-invalid",
        ),
        # A cookie is no link, and a link no cookie.
        (access.ask(PORT, "/", token=cookie.partition("=")[2]), 401, "preview-link-invalid"),
        (
            access.ask(PORT, "/", token=None, headers={"Cookie": f"svc-preview={link['token']}"}),
            401,
            "preview-link-invalid",
        ),
        (access.ask(PORT, "/", host="example.com"), 404, "preview-unknown-host"),
        (access.ask(PORT, "/", host=f"{PORT}-x.localhost"), 404, "preview-unknown-host"),
    ]
    for answer, status, code in refused:
        assert (answer.status, json.loads(answer.body)["code"]) == (status, code)
    api = access.place.stack.api
    api.get("/v1/workspaces", headers={TOKEN_HEADER: link["token"]}, expect=400)


def test_pages_of_others_cannot_use_a_cookie(access: PreviewAccess) -> None:
    _, cookie = access.open_link(access.link(PORT)["url"])

    def status(method: str = "GET", **headers: str) -> int:
        sent = {
            "Cookie": cookie,
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        return access.ask(PORT, "/digest", method=method, headers=sent, token=None).status

    own = f"http://{access.host(PORT)}"
    sibling = f"http://{access.host(OTHER)}"
    foreign = f"http://{PORT}-{access.workspace_id[:-4]}0000.localhost:{access.gateway.port}"
    assert status() == status(Origin=own) == status("POST", Origin=sibling) == 200
    assert status(Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
    assert status(Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors") == 403
    assert status("POST", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 403
    for origin in (foreign, "null", "http://example.com", f"https://{access.host(PORT)}"):
        assert status("POST", Origin=origin) == status(Origin=origin) == 403


def test_what_does_not_listen_is_told_with_what_does(access: PreviewAccess) -> None:
    answer = access.ask(OTHER, "/")
    told = json.loads(answer.body)
    assert (answer.status, told["code"]) == (502, "nothing-listens")
    assert f"Nothing listens on port {OTHER}" in told["detail"]
    assert str(PORT) in told["detail"]
    page = access.ask(OTHER, "/", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert b"Nothing listens" in page.body


def test_a_server_that_closes_each_connection_is_passed_on(access: PreviewAccess) -> None:
    access.serve(OLD_SERVER, OLD)
    first, second = access.ask(OLD, "/kept"), access.ask(OLD, "/kept")
    assert (first.status, first.body) == (second.status, second.body) == (200, b"one\n")


def test_a_server_that_dies_is_told_or_cuts_the_answer_off(access: PreviewAccess) -> None:
    answer = access.ask(PORT, "/close")
    assert (answer.status, json.loads(answer.body)["code"]) == (502, "preview-server-closed")
    with pytest.raises(Exception, match="IncompleteRead"):
        access.ask(PORT, "/die")


def test_an_early_answer_arrives_before_the_body_is_sent(access: PreviewAccess) -> None:
    token = access.link(PORT)["token"]
    with socket.create_connection(("127.0.0.1", access.gateway.port), SECONDS) as connection:
        connection.sendall(
            f"POST /early HTTP/1.1\r\nHost: {access.host(PORT)}\r\n{TOKEN_HEADER}: {token}\r\n"
            "Content-Length: 100000\r\n\r\nonly a part".encode()
        )
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b"no")


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
AMBIGUOUS = {
    "two lengths": (b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED, b"400"),
    "a length that is none": (b"Content-Length: +5\r\n\r\n" + SMUGGLED, b"400"),
    "chunks of another coding": (b"Transfer-Encoding: gzip, chunked\r\n\r\n" + SMUGGLED, b"501"),
    "a chunk without a size": (b"Transfer-Encoding: chunked\r\n\r\nx\r\n" + SMUGGLED, b"400"),
    "a space before the colon": (b"Content-Length : 44\r\n\r\n" + SMUGGLED, b"400"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_request_that_could_be_read_in_two_ways_is_refused(
    access: PreviewAccess, name: str
) -> None:
    rest, status = AMBIGUOUS[name]
    token = access.link(PORT)["token"]
    head = f"POST /digest HTTP/1.1\r\nHost: {access.host(PORT)}\r\n{TOKEN_HEADER}: {token}\r\n"
    with socket.create_connection(("127.0.0.1", access.gateway.port), SECONDS) as connection:
        connection.sendall(head.encode() + rest)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 " + status), received
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_length_beside_chunks_does_not_reach_the_server(access: PreviewAccess) -> None:
    token = access.link(PORT)["token"]
    head = f"POST /digest HTTP/1.1\r\nHost: {access.host(PORT)}\r\n{TOKEN_HEADER}: {token}\r\n"
    chunks = "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", access.gateway.port), SECONDS) as connection:
        connection.sendall(f"{head}{chunks}5\r\nhello\r\n0\r\n\r\n".encode())
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert json.loads(received.partition(b"\r\n\r\n")[2])["size"] == 5


def test_events_arrive_as_they_are_sent(access: PreviewAccess) -> None:
    connection = access.connect()
    sent = {"Host": access.host(PORT), TOKEN_HEADER: access.link(PORT)["token"]}
    connection.request("GET", "/events", headers=sent)
    answer = connection.getresponse()
    assert answer.readline() == b"data: first\n"
    access.ask(PORT, "/release")
    assert answer.read() == b"\ndata: second\n\n"
    connection.close()


def test_fifty_at_once_are_answered(access: PreviewAccess) -> None:
    token = access.link(PORT)["token"]
    with ThreadPoolExecutor(50) as pool:
        answers = pool.map(lambda _: access.ask(PORT, "/bytes/100000", token=token), range(50))
        assert {(each.status, len(each.body)) for each in answers} == {(200, 100_000)}


def test_a_server_keeps_its_cookies_to_itself(access: PreviewAccess) -> None:
    headers = access.ask(PORT, "/cookies").headers
    assert headers["set-cookie"] == "mine=1; Path=/"
    assert "alt-svc" not in headers


def test_each_connection_is_an_event_with_its_bytes(access: PreviewAccess) -> None:
    boot = access.place.started.answer["runId"]

    def told(kind: str) -> list[dict[str, Any]]:
        return [each for each in access.place.timeline(boot, kind) if each["ref"]["port"] == LAST]

    access.serve(SERVER, LAST)
    # The server closes this connection by itself: how much went over it is known then.
    access.ask(LAST, "/close", headers={"X-Long": "x" * SENT})
    eventually(lambda: bool(told("forwardClosed")), what="the end of the connection is recorded")
    (closed,), (opened,) = told("forwardClosed"), told("forwardOpened")
    assert opened["summary"] == f"forward opened: localhost port {LAST}, by {OWNER}"
    assert opened["ref"]["via"] == closed["ref"]["via"] == "preview"
    assert opened["ref"]["by"] == closed["ref"]["by"] == OWNER
    assert SENT < closed["ref"]["sentBytes"] < SENT + 1000
    assert closed["ref"]["receivedBytes"] == 0
    assert "X-Long" not in json.dumps(access.place.timeline(boot))


def test_no_byte_passes_the_agent_where_its_network_can_be_entered(access: PreviewAccess) -> None:
    assert access.ask(PORT, "/none").status == 204
    assert '"direct": true' in access.gateway.told


def test_the_agent_passes_bytes_on_for_a_gateway_that_may_not_enter_its_network(
    access: PreviewAccess, tmp_path: Path
) -> None:
    with another(access, Confined, tmp_path / "confined.log") as confined:
        for _ in range(2):
            content = os.urandom(MIB)
            told = json.loads(confined.ask(PORT, "/digest", method="POST", body=content).body)
            assert told["sha256"] == hashlib.sha256(content).hexdigest()
            received = confined.ask(PORT, f"/bytes/{MIB}").body
            assert received == bytes(range(256)) * (MIB // 256)
        assert confined.ask(OTHER, "/").status == 502
        assert "workspace_network_not_entered" in confined.gateway.told


def test_what_a_killed_gateway_has_passed_on_is_in_the_record(
    access: PreviewAccess, tmp_path: Path
) -> None:
    boot = access.place.started.answer["runId"]
    access.serve(SERVER, KILLED)

    def told(kind: str) -> list[dict[str, Any]]:
        return [each for each in access.place.timeline(boot, kind) if each["ref"]["port"] == KILLED]

    with another(access, PreviewProcess, tmp_path / "killed.log") as killed:
        # The connection to the server is kept; how much went over it is told now and then.
        assert len(killed.ask(KILLED, f"/bytes/{MIB}").body) == MIB
        time.sleep(LEAVE_SECONDS + 2)
        os.kill(killed.gateway.process.pid, signal.SIGKILL)
        eventually(lambda: bool(told("forwardClosed")), what="the end is recorded")
    (closed,) = told("forwardClosed")
    assert MIB < closed["ref"]["receivedBytes"] < MIB + 1000
    assert 0 < closed["ref"]["sentBytes"] < 2000


def test_websockets_are_passed_on(access: PreviewAccess) -> None:
    sent = {TOKEN_HEADER: access.link(PORT)["token"]}
    place = f"ws://{access.host(PORT)}/echo"
    address = ("127.0.0.1", access.gateway.port)
    waits: dict[str, Any] = {"open_timeout": SECONDS, "ping_timeout": SECONDS}
    there = socket.create_connection(address)
    with connect(place, additional_headers=sent, sock=there, **waits) as echo:
        for message in ("hello", "x" * 50_000, b"\0\1\2"):
            echo.send(message)
            assert echo.recv(timeout=SECONDS) == message
    with pytest.raises(InvalidStatus, match="401"):
        connect(place, sock=socket.create_connection(address), **waits)


@pytest.mark.slow
def test_a_browser_opens_a_link_on_localhost(access: PreviewAccess, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        page.start(access.link(PORT, path="/page")["url"])
        page.wait_for("document.title === 'mine'")
        assert page.evaluate("location.href") == f"http://{access.host(PORT)}/page"
        page.wait_for("window.echoed === 'over the socket'")
        page.wait_for("window.event === 'first' || window.event === 'second'")
        # The page itself sees nothing of the cookie, and neither does its server.
        assert page.evaluate("window.cookieSeen") == ""
        assert "cookie" not in dict(page.evaluate("window.headersSeen.headers"))
        page.start(f"http://{access.host(OTHER)}/")
        page.wait_for("(document.body?.innerText ?? '').includes('preview-link-required')")
