"""Heads and bodies as the preview gateway reads them; h11 is the second opinion."""

from __future__ import annotations

import contextlib
import os

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.preview.http_messages import (
    LAST_CHUNK,
    MAX_HEAD_BYTES,
    BadMessage,
    Body,
    chunk,
    end_of_head,
    parse_request,
    parse_response,
    request_body,
    request_bytes,
    response_body,
)

GET = b"GET /path?a=b HTTP/1.1\r\n"


def test_a_head_is_taken_apart_and_written_anew() -> None:
    head = parse_request(GET + b"Host: a\r\nX-Many:  one \r\nX-many:\ttwo\r\nEmpty:\r\n\r\n")
    assert (head.method, head.target, head.version) == (b"GET", b"/path?a=b", b"1.1")
    assert head.headers == [
        (b"host", b"a"),
        (b"x-many", b"one"),
        (b"x-many", b"two"),
        (b"empty", b""),
    ]
    assert parse_request(request_bytes(head.method, head.target, head.headers)) == head


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (GET + b"\r\n", 400),
        (GET + b"Host: a\r\nHost: a\r\n\r\n", 400),
        (GET + b"Host: a\r\nName : b\r\n\r\n", 400),
        (GET + b"Host: a\r\n: b\r\n\r\n", 400),
        (GET + b"Host: a\r\nno colon\r\n\r\n", 400),
        (GET + b"Host: a\r\n folded: b\r\n\r\n", 400),
        (GET + b"Host: a\r\nx: b\rc\r\n\r\n", 400),
        (GET + b"Host: a\r\nx: b\0c\r\n\r\n", 400),
        (GET + b"Host: a\r\n" + b"x: y\r\n" * 600 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadMessage) as refused:
        parse_request(head)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        (b"Content-Length: 1, 2\r\n", 400),
        (b"Content-Length: -1\r\n", 400),
        (b"Content-Length: 0x1\r\n", 400),
        (b"Content-Length: 1_0\r\n", 400),
        (b"Content-Length: \r\n", 400),
        (b"Content-Length: " + b"9" * 30 + b"\r\n", 400),
        (b"Transfer-Encoding: gzip\r\n", 501),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501),
        (b"Transfer-Encoding: chunked, identity\r\n", 501),
        (b"Transfer-Encoding: xchunked\r\n", 501),
    ],
)
def test_a_body_of_which_two_ends_could_be_read_is_refused(rest: bytes, status: int) -> None:
    with pytest.raises(BadMessage) as refused:
        request_body(parse_request(GET + b"Host: a\r\n" + rest + b"\r\n"))
    assert refused.value.status == status


def test_chunks_are_for_http_1_1_only() -> None:
    head = parse_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(BadMessage):
        request_body(head)


def test_the_same_length_twice_is_passed_on_once() -> None:
    head = parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5, 5\r\n\r\n")
    body = response_body(head, b"GET")
    assert body.take(b"hello and more") == (b"hello", b" and more")
    assert head.headers == [(b"content-length", b"5")]


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        (b"HTTP/1.1 200 OK", 200, b"OK"),
        (b"HTTP/1.1 200 ", 200, b""),
        (b"HTTP/1.1 200", 200, b""),
        (b"HTTP/1.0 404 Not \xe4 Found", 404, b"Not \xe4 Found"),
    ],
)
def test_first_lines_of_answers(line: bytes, status: int, reason: bytes) -> None:
    head = parse_response(line + b"\nX: a\n  b\r\n\n")
    assert (head.status, head.reason, head.headers) == (status, reason, [(b"x", b"a b")])


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"ICY 200 OK\r\n\r\n", b"\r\n\r\n"],
)
def test_what_is_no_answer_is_refused(head: bytes) -> None:
    with pytest.raises(BadMessage):
        parse_response(head)


@pytest.mark.parametrize(
    ("status", "method", "done"),
    [(200, b"HEAD", True), (204, b"GET", True), (304, b"GET", True), (200, b"GET", False)],
)
def test_answers_without_a_body(status: int, method: bytes, done: bool) -> None:
    head = parse_response(b"HTTP/1.1 %d X\r\nContent-Length: 7\r\n\r\n" % status)
    assert response_body(head, method).done is done


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    body = response_body(parse_response(b"HTTP/1.1 200 OK\r\n\r\n"), b"GET")
    assert body.until_closed
    assert body.take(b"all of it") == (b"all of it", b"")
    assert not body.done


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_chunks_come_in_any_pieces(step: int) -> None:
    content = os.urandom(300)
    sent = chunk(content[:1]) + b"0A;name=value\n" + content[1:11] + b"\n" + chunk(content[11:])
    sent += b"0\r\nTrailer: x\r\n\r\n" + b"GET /next"
    body, found, rest = Body(None, chunked=True), b"", b""
    for start in range(0, len(sent), step):
        piece, behind = body.take(sent[start : start + step])
        found += piece
        rest += behind
    assert (found, rest, body.done) == (content, b"GET /next", True)


@pytest.mark.parametrize(
    "sent",
    [
        b"x\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\rb",
        b"f" * 17 + b"\r\n",
        b"1;" + b"x" * 5000,
        b"0\r\nno trailer\r\n",
        b"0\r\n" + b"x: y\r\n" * 20_000,
    ],
)
def test_chunks_that_are_none_are_refused(sent: bytes) -> None:
    body = Body(None, chunked=True)

    def take() -> None:
        for start in range(0, len(sent), 16):
            body.take(sent[start : start + 16])
        body.take(b"\n")

    with pytest.raises(BadMessage):
        take()


def test_a_head_ends_where_it_ends_however_it_comes() -> None:
    head = GET + b"Host: a\r\n\r\n"
    for size in range(len(head)):
        assert end_of_head(head[:size], max(0, size - 1)) == -1
    assert end_of_head(head + b"body", len(head) - 1) == len(head)
    assert end_of_head(b"GET / HTTP/1.0\n\nbody") == 16
    with pytest.raises(BadMessage) as refused:
        end_of_head(b"x" * (MAX_HEAD_BYTES + 1))
    assert refused.value.status == 431


@pytest.mark.parametrize(
    "long",
    [b" " * 60_000 + b"\0", b"\t " * 30_000 + b"\0", b"a" * 60_000 + b"\0", b":" * 60_000 + b"\0"],
)
def test_no_head_takes_longer_than_its_length_asks_for(long: bytes) -> None:
    # Patterns that go back over what they have read would take minutes for these.
    for head in (GET + b"x:" + long + b"\r\n\r\n", GET + long + b"\r\n\r\n", long + b"\r\n\r\n"):
        with pytest.raises(BadMessage):
            parse_request(head)
        with pytest.raises(BadMessage):
            parse_response(b"HTTP/1.1 200 OK\r\nx:" + head)


PARTS = st.lists(
    st.sampled_from(
        [
            *(b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b":", b"Host", b"a"),
            *(b"Content-Length", b"Transfer-Encoding", b"chunked", b"5", b",", b"\t", b"\0", b";"),
            *(GET, b"Host: a\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"),
            *(b"5\r\nhello\r\n", LAST_CHUNK, b"hello", b"\r\n\r\n", b"\xff", b"x: y\r\n"),
        ]
    ),
    max_size=14,
)


@settings(deadline=None)  # a busy machine takes its time
@given(PARTS)
def test_what_is_taken_is_read_as_another_parser_reads_it(parts: list[bytes]) -> None:
    sent = GET + b"Host: a\r\n" + b"".join(parts) + b"\r\n"
    with contextlib.suppress(BadMessage):
        end = end_of_head(sent)
        if end < 0:
            return
        head = parse_request(sent[:end])
        body = request_body(head)
        content, rest = body.take(sent[end:])
        other = h11.Connection(h11.SERVER)
        other.receive_data(sent)
        event = other.next_event()
        assert isinstance(event, h11.Request)
        assert (event.method, event.target) == (head.method, head.target)
        read = b""
        while isinstance(found := other.next_event(), h11.Data):
            read += found.data
        assert isinstance(found, h11.EndOfMessage) is body.done
        assert read == content
        if body.done:
            assert other.trailing_data[0] == rest
