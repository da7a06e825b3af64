"""HTTP/1.1 as the proxy speaks it: one way to write each thing, and a limit to all of them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

BUFFER_BYTES = 256 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.1\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)\Z")
_ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\Z")
_REASONS = {each.value: each.phrase for each in HTTPStatus}


class MalformedError(Exception):
    """What came is not HTTP, or more of it than there is room for."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    method: str
    target: str
    body: bytes
    close: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of what the engine answers, as it came and taken apart."""

    status: int
    head: bytes
    headers: dict[bytes, bytes]


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; None when the client has hung up between two of them."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise MalformedError("half a request") from error
    except asyncio.LimitOverrunError as error:
        raise MalformedError("too long a head") from error
    if len(head) > MAX_HEAD_BYTES:
        raise MalformedError("too long a head")
    first, *lines = head[:-4].split(b"\r\n")
    asked = _REQUEST.match(first)
    if asked is None:
        raise MalformedError("not a request")
    headers = _headers(lines)
    # The length is all that says where a request ends: never two ways to find that out.
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers or not re.match(rb"[0-9]{1,7}\Z", length):
        raise MalformedError("a body without a length")
    if int(length) > MAX_BODY_BYTES:
        raise MalformedError("too long a body")
    body = await reader.readexactly(int(length))
    close = headers.get(b"connection", b"").lower() == b"close"
    return Request(asked[1].decode(), asked[2].decode(), body, close)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read the head of the engine's answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    found = _ANSWER.match(first)
    if found is None:
        raise MalformedError("not an answer")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return Answer(int(found[1]), head, headers)


async def read_body(reader: asyncio.StreamReader, answer: Answer) -> bytes:
    """Read the engine's whole answer, which must not be too long."""
    if answer.headers.get(b"transfer-encoding", b"").lower() != b"chunked":
        length = answer.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_ANSWER_BYTES:
            raise MalformedError("too long an answer")
        return await reader.readexactly(int(length))
    parts, left = [], MAX_ANSWER_BYTES
    while size := _chunk_size(await reader.readuntil(b"\r\n")):
        left -= size
        if left < 0:
            raise MalformedError("too long an answer")
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def request_bytes(method: str, target: str, body: bytes, *, upgrade: bool = False) -> bytes:
    """Return a request to the engine, of which nothing but these parts is anybody's choice."""
    connection = "Upgrade\r\nUpgrade: tcp" if upgrade else "close"
    kind = "Content-Type: application/json\r\n" if body else ""
    return (
        f"{method} {target} HTTP/1.1\r\nHost: docker\r\n{kind}"
        f"Connection: {connection}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode("ascii") + body


def answer_bytes(status: int, body: bytes, *, close: bool) -> bytes:
    """Return an answer to a client."""
    reason = _REASONS.get(status, "Answer")
    connection = "Connection: close\r\n" if close else ""
    return (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{connection}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode("ascii") + body


def message(text: str) -> bytes:
    """Return the engine's form of a message."""
    return json.dumps({"message": text}).encode()


async def connect(docker_host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the engine at ``unix://…`` or ``tcp://…``."""
    address = urlsplit(docker_host)
    if address.scheme == "unix":
        path = f"/{docker_host.removeprefix('unix://').lstrip('/')}"
        return await asyncio.open_unix_connection(path, limit=BUFFER_BYTES)
    if address.scheme in ("tcp", "http") and address.hostname:
        return await asyncio.open_connection(
            address.hostname, address.port or 2375, limit=BUFFER_BYTES
        )
    raise OSError("the engine's address is not usable")


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = _HEADER.match(line)
        if found is None:
            raise MalformedError("not a header")
        name = found[1].lower()
        if name in headers and name in (b"content-length", b"transfer-encoding", b"connection"):
            raise MalformedError("a header that is given twice")
        headers[name] = found[2].strip()
    return headers


def _chunk_size(line: bytes) -> int:
    digits = line[:-2].partition(b";")[0].strip()
    if not re.match(rb"[0-9A-Fa-f]{1,8}\Z", digits):
        raise MalformedError("not a chunk")
    return int(digits, 16)
