"""Clients that are slow, or too many, hold up nobody else: the real server, and real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.stack.free_ports import free_port
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MANY = 500
OTHERS = "127.0.0.2"
"""The address that the slow clients come from."""
HEAD = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


PATIENT = {
    f"SVC_API_{what}_TIMEOUT_MS": str(round(3000 * LONG_WAIT))
    for what in ("HEADER", "BODY", "WRITE")
}
"""Nobody is cut off while a test waits, so whoever holds up the server does it to the end."""


@contextmanager
def serving(application: str = "controlplane.wsgi", **settings: str) -> Iterator[int]:
    """Serve as a deployment does, with these settings; give the port."""
    with served(application, **settings) as (_, port):
        yield port


@contextmanager
def served(
    application: str = "controlplane.wsgi", **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve as ``serving`` does; give gunicorn, too."""
    port = free_port()
    given = {"SVC_API_PORT": str(port), "SVC_WEB_PORT": "0", "SVC_API_WORKERS": "1"}
    given |= PATIENT | settings
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", application],
        cwd=ROOT,
        env={**os.environ, **given},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + LONG_WAIT
        while not answers(port):
            assert server.poll() is None, "gunicorn ended"
            assert time.monotonic() < deadline, "gunicorn does not answer"
            time.sleep(0.1)
        yield server, port
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LONG_WAIT)


@contextmanager
def paused(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have what is sent meanwhile lie there before the server looks at its clock again."""
    below = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    processes = [server.pid, *map(int, below)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def answers(port: int) -> bool:
    """Tell whether the server answers at all."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def holds_up_nobody(port: int, times: int = 20) -> None:
    """Ask on a new connection each time; a server that is held up would not answer in time."""
    for _ in range(times):
        assert answers(port)


def connect(port: int, address: str = OTHERS) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", port), timeout=LONG_WAIT, source_address=(address, 0)
    )


def crowd(stack: ExitStack, port: int, data: bytes, count: int = MANY) -> list[socket.socket]:
    """Connect so many times, and send this each time."""
    sockets = []
    for _ in range(count):
        sockets.append(stack.enter_context(connect(port)))
        sockets[-1].sendall(data)
    return sockets


def ended(sock: socket.socket) -> bytes:
    """Return what is still sent until the other side ends the connection."""
    received = b""
    try:
        while data := sock.recv(1 << 20):
            received += data
    except ConnectionError:
        pass
    return received


ROOM = {"SVC_API_MAX_CONNECTIONS": "2000", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "2000"}
TRICKLES = {
    "nothing": (b"", b"G"),
    "a head": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"a"),
    "a body": (HEAD + b"Content-Length: 100000\r\n\r\n{", b" "),
    "a body in chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1"),
}


@pytest.mark.parametrize("limits", [ROOM, {}], ids=["with room for all", "by default"])
@pytest.mark.parametrize("trickle", TRICKLES)
def test_500_sockets_that_trickle_hold_up_nobody_else(trickle: str, limits: dict[str, str]) -> None:
    first, more = TRICKLES[trickle]
    with serving(**limits) as port, ExitStack() as stack:
        sockets = crowd(stack, port, first)
        for _ in range(3):
            for sock in sockets:
                try:
                    sock.send(more)
                except ConnectionError:
                    assert not limits, "there was room"
            holds_up_nobody(port)


def test_500_readers_that_do_not_read_hold_up_nobody_else() -> None:
    with serving(**ROOM) as port, ExitStack() as stack:
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for sock in crowd(stack, port, asked):
            assert sock.recv(1) == b"H"  # all of them are answered, as fast as it goes
        holds_up_nobody(port)


def test_readers_of_endless_answers_hold_up_nobody_else() -> None:
    """What a thread makes is larger than all buffers: it waits for its reader, and not for long."""
    application = "tests.security.big_answers"
    with serving(application, **ROOM) as port, ExitStack() as stack:
        crowd(stack, port, b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n", 60)
        until = time.monotonic() + LONG_WAIT
        while not any(unread(port).values()):
            assert time.monotonic() < until, "the buffers on the way to readers are not full"
            time.sleep(0.02)
        holds_up_nobody(port)
        # One that reads gets all of it, whatever others do.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
        connection.request("GET", "/big")
        assert len(connection.getresponse().read()) == 64 * 1024 * 1024 + 2
        connection.close()


def test_a_head_or_body_that_comes_too_late_is_told_and_ended() -> None:
    times = {"SVC_API_HEADER_TIMEOUT_MS": "2000", "SVC_API_BODY_TIMEOUT_MS": "2000"}
    with served(**times) as (server, port), ExitStack() as stack:
        with paused(server):
            silent = stack.enter_context(connect(port))
            head = stack.enter_context(connect(port))
            body = stack.enter_context(connect(port))
            head.sendall(b"GET /healthz HTTP/1.1\r\n")
            body.sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
        assert ended(silent) == b""
        for sock in (head, body):
            status, _, rest = ended(sock).partition(b"\r\n")
            assert status == b"HTTP/1.1 408 Request timeout"
            told = json.loads(rest.partition(b"\r\n\r\n")[2])
            assert (told["status"], told["code"]) == (408, "request-timeout")


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    with (
        serving("tests.security.big_answers", SVC_API_WRITE_TIMEOUT_MS="1000") as port,
        connect(port) as sock,
    ):
        sock.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until = time.monotonic() + LONG_WAIT
        while connected(port, sock.getsockname()):
            assert time.monotonic() < until, "it is not cut off"
            time.sleep(0.1)
        assert len(ended(sock)) < 64 * 1024 * 1024


def connected(port: int, client: tuple[str, int]) -> bool:
    """Whether the server has this client's connection, and has not closed it."""
    there = f"{int.from_bytes(socket.inet_aton(client[0]), 'little'):08X}:{client[1]:04X}"
    return there in unread(port)


def unread(port: int) -> dict[str, int]:
    """Return how many bytes wait in the server's system for each client, by its address there."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    here = [f"0100007F:{port:04X}", "01"]
    return {row[2]: int(row[4].partition(":")[0], 16) for row in rows if [row[1], row[3]] == here}


def test_an_address_with_too_many_connections_makes_room_with_its_own_oldest() -> None:
    limits = {"SVC_API_MAX_CONNECTIONS": "20", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "5"}
    with serving(**limits) as port, ExitStack() as stack:
        mine = stack.enter_context(connect(port, "127.0.0.3"))
        mine.sendall(b"GET /healthz HTTP/1.1\r\n")
        sockets = crowd(stack, port, b"G", 8)
        for sock in sockets[:3]:
            assert ended(sock) == b""
        sockets[-1].sendall(b"ET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert ended(sockets[-1]).startswith(b"HTTP/1.1 200 ")
        mine.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        assert ended(mine).startswith(b"HTTP/1.1 200 ")


def test_too_many_connections_make_room_at_the_address_that_has_most() -> None:
    limits = {"SVC_API_MAX_CONNECTIONS": "10", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "10"}
    with serving(**limits) as port, ExitStack() as stack:
        mine = stack.enter_context(connect(port, "127.0.0.3"))
        mine.sendall(b"GET /healthz HTTP/1.1\r\n")
        crowd(stack, port, b"G", 30)
        mine.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        assert ended(mine).startswith(b"HTTP/1.1 200 ")


# ---------------------------------------------------------------- and nothing else has changed


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server with what is customary."""
    with serving() as number:
        yield number


def exchange(port: int, *parts: bytes, pause: float = 0.05) -> bytes:
    """Send the parts one after the other; return all that is answered."""
    with connect(port) as sock:
        with suppress(ConnectionError):  # it was refused before all had been sent
            for part in parts:
                sock.sendall(part)
                time.sleep(pause)
        return ended(sock)


def test_a_request_that_comes_byte_by_byte_is_answered(port: int) -> None:
    text = HEAD + b"Content-Length: 4\r\nConnection: close\r\n\r\nnull"
    parts = [text[index : index + 1] for index in range(len(text))]
    assert b'"wrong-type"' in exchange(port, *parts, pause=0.001)


def test_chunks_that_are_cut_anywhere_are_put_together(port: int) -> None:
    text = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    text += b"3;a=b\r\nnul\r\n01\r\nl\r\n0\r\nX-Trailer: 1\r\n\r\n"
    parts = [text[index : index + 1] for index in range(len(text))]
    assert b'"wrong-type"' in exchange(port, *parts, pause=0.001)


def test_requests_that_come_together_are_answered_one_after_the_other(port: int) -> None:
    asked = [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: first\r\n\r\n",
        HEAD + b"Content-Length: 4\r\nX-Request-Id: second\r\n\r\nnull",
        HEAD + b"Transfer-Encoding: chunked\r\nX-Request-Id: third\r\n\r\n4\r\nnull\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: last\r\nConnection: close\r\n\r\n",
    ]
    answer = exchange(port, b"".join(asked))
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"400", b"400", b"200"]
    places = [answer.find(f"x-request-id: {name}".encode()) for name in
              ("first", "second", "third", "last")]  # fmt: skip
    assert -1 not in places
    assert places == sorted(places)


def test_who_asks_before_sending_is_told_to_go_on_or_not(port: int) -> None:
    expecting = b"Expect: 100-continue\r\nConnection: close\r\n"
    with connect(port) as sock:
        sock.sendall(HEAD + expecting + b"Content-Length: 4\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"null")
        assert ended(sock).startswith(b"HTTP/1.1 400 ")
    too_large = HEAD + expecting + b"Content-Length: 99999999\r\n\r\n"
    assert exchange(port, too_large).startswith(b"HTTP/1.1 413 ")


def test_the_answer_to_a_body_that_is_not_read_says_that_the_connection_ends(port: int) -> None:
    answer = exchange(port, HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b" Content-Length: 40\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    ],
)
def test_a_request_whose_end_is_in_doubt_hides_no_second_one(port: int, framing: bytes) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = exchange(port, HEAD + framing + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.split(b" ")[1][:1] in b"45"


def test_a_head_without_end_is_refused(port: int) -> None:
    answer = exchange(port, b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")


def test_a_connection_is_used_again_until_it_is_ended(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    connection.connect()
    first: Any = connection.sock
    for _ in range(5):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
    assert connection.sock is first
    connection.close()
