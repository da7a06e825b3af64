"""HTTP/1 as the gateway reads it: heads taken apart, and where a body ends.

Strict where a message could be read in two ways: what is passed on is written anew from what was
read here, so nobody behind the gateway can find another end of it. Every pattern takes time in
proportion to what it reads, whatever that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RawHeaders = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 512
MAX_CHUNK_LINE = 4096
MAX_LENGTH_DIGITS = 18

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+"
_REQUEST = re.compile(rb"(%s) ([\x21-\x7e]+) HTTP/(1\.[01])\r?\n" % _TOKEN)
_VERSION = re.compile(rb"%s [\x21-\x7e]+ HTTP/[0-9](\.[0-9])?\r?\n" % _TOKEN)
_STATUS = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([^\x00\r\n\x0b\x0c]*))?\r?\n")
_FIELD = re.compile(rb"(%s):([^\x00\r\n\x0b\x0c]*)\r?\n" % _TOKEN)
_FOLD = re.compile(rb"\r?\n[ \t]+")
_END = re.compile(rb"\n\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\x00\r\n]*)?\r?\n")


class BadMessage(Exception):
    """It is no HTTP that is taken; ``status`` is what a client is told for that."""

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(slots=True)
class Head:
    """What requests and answers have in common. Names of headers are in lower case."""

    version: bytes
    headers: RawHeaders

    def words(self, name: bytes) -> list[bytes]:
        """Return the words of a header that is a list, in lower case."""
        found = [value for each, value in self.headers if each == name]
        if not found:
            return []
        return [word.strip().lower() for word in b",".join(found).split(b",")]

    @property
    def lasts(self) -> bool:
        """Whether the connection goes on after this message."""
        return self.version == b"1.1" and b"close" not in self.words(b"connection")


@dataclass(slots=True)
class RequestHead(Head):
    """The head of a request."""

    method: bytes
    target: bytes


@dataclass(slots=True)
class ResponseHead(Head):
    """The head of an answer."""

    status: int
    reason: bytes


class Body:
    """Finds the end of a body. ``length`` None: that of chunks, or of the connection."""

    __slots__ = ("_inside", "_left", "_line", "_trailers", "chunked", "done")

    def __init__(self, length: int | None, *, chunked: bool = False) -> None:
        self.chunked = chunked
        self.done = length == 0 and not chunked
        self._left: int | None = 0 if chunked else length
        self._line = b""
        self._inside = False
        self._trailers = -1

    @property
    def until_closed(self) -> bool:
        """Whether only the end of the connection ends it."""
        return self._left is None

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what is content in this, and what comes behind the body. Raises ``BadMessage``."""
        if self.done:
            return b"", data
        if self.chunked:
            return self._take_chunks(data)
        if self._left is None:
            return data, b""
        if len(data) < self._left:
            self._left -= len(data)
            return data, b""
        self.done = True
        left, self._left = self._left, 0
        return (data, b"") if len(data) == left else (data[:left], data[left:])

    def _take_chunks(self, data: bytes) -> tuple[bytes, bytes]:
        found: list[bytes] = []
        at = 0
        while at < len(data) and not self.done:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                found.append(piece)
                continue
            # A line: of a size, of a trailer, or the empty one behind a chunk.
            end = data.find(b"\n", at)
            self._line += data[at : end + 1] if end >= 0 else data[at:]
            at = end + 1 if end >= 0 else len(data)
            if len(self._line) > (MAX_HEAD_BYTES if self._trailers >= 0 else MAX_CHUNK_LINE):
                raise BadMessage("a line between chunks is too long")
            if end >= 0:
                line, self._line = self._line, b""
                self._take_line(line)
        return (found[0] if len(found) == 1 else b"".join(found)), data[at:]

    def _take_line(self, line: bytes) -> None:
        if self._trailers >= 0:
            self._trailers += len(line)
            if self._trailers > MAX_HEAD_BYTES:
                raise BadMessage("the trailers are too long")
            self.done = line in (b"\r\n", b"\n")
            if not self.done and _FIELD.fullmatch(line) is None:
                raise BadMessage("a trailer is no header")
        elif self._inside:
            if line not in (b"\r\n", b"\n"):
                raise BadMessage("a chunk is longer than it says")
            self._inside = False
        else:
            size = _CHUNK.fullmatch(line)
            if size is None:
                raise BadMessage("a chunk has no size")
            self._left = int(size[1], 16)
            self._inside = self._left > 0
            if not self._left:
                self._trailers = 0


def end_of_head(data: bytes, start: int = 0) -> int:
    """Return where a head ends that begins at 0; -1 while it has not come wholly.

    Before ``start`` no end was found. Raises ``BadMessage`` for one that is too long.
    """
    found = _END.search(data, max(0, start - 2))
    end = -1 if found is None else found.end()
    if max(end, len(data) if end < 0 else 0) > MAX_HEAD_BYTES:
        raise BadMessage(f"a head has more than {MAX_HEAD_BYTES} bytes", 431)
    return end


def parse_request(head: bytes) -> RequestHead:
    """Take the head of a request apart. Raises ``BadMessage``."""
    line = _REQUEST.match(head)
    if line is None:
        if _VERSION.match(head):
            raise BadMessage("only HTTP/1.0 and HTTP/1.1 are spoken here", 505)
        raise BadMessage("the first line is not one of a request")
    headers = _headers(head, line.end())
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and line[3] == b"1.1"):
        raise BadMessage("a request has one Host")
    return RequestHead(line[3], headers, line[1], line[2])


def parse_response(head: bytes) -> ResponseHead:
    """Take the head of an answer apart. Raises ``BadMessage``."""
    line = _STATUS.match(head)
    if line is None:
        raise BadMessage("the first line is not one of an answer")
    if b"\n " in head or b"\n\t" in head:
        # Old servers still break long lines; nobody else is asked to understand that.
        head = head[: line.end()] + _FOLD.sub(b" ", head[line.end() :])
    return ResponseHead(line[1], _headers(head, line.end()), int(line[2]), line[3] or b"")


def request_body(head: RequestHead) -> Body:
    """Return how the body of a request ends. Raises ``BadMessage``."""
    coding, length = _framing(head)
    if coding:
        if head.version != b"1.1":
            raise BadMessage("HTTP/1.0 has no chunks")
        return Body(None, chunked=True)
    return Body(length or 0)


def response_body(head: ResponseHead, method: bytes) -> Body:
    """Return how the body of an answer ends. Raises ``BadMessage``."""
    coding, length = _framing(head)
    if method == b"HEAD" or head.status in (204, 304) or head.status < 200:
        return Body(0)
    return Body(None, chunked=True) if coding else Body(length)


def _framing(head: Head) -> tuple[bool, int | None]:
    """Return whether there are chunks, and what the length is said to be; leaves one of these."""
    codings: list[bytes] = []
    lengths: list[bytes] = []
    for name, value in head.headers:
        if name == b"transfer-encoding":
            codings.append(value.lower())
        elif name == b"content-length":
            lengths += value.split(b",")
    if codings and codings != [b"chunked"]:
        raise BadMessage("the only transfer coding that is taken is chunked", 501)
    if not lengths:
        return bool(codings), None
    length = lengths[0].strip()
    if any(each.strip() != length for each in lengths):
        raise BadMessage("there are two lengths")
    # isdigit() of bytes knows only those of ASCII.
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise BadMessage("the length is no number")
    if len(lengths) > 1:
        head.headers = [pair for pair in head.headers if pair[0] != b"content-length"]
        head.headers.append((b"content-length", length))
    return bool(codings), int(length)


def _headers(head: bytes, at: int) -> RawHeaders:
    headers: RawHeaders = []
    end = len(head)
    while head[at : at + 2] != b"\r\n" and head[at : at + 1] != b"\n":
        field = _FIELD.match(head, at)
        if field is None:
            raise BadMessage("a header is not of the form that one has")
        headers.append((field[1].lower(), field[2].strip(b" \t")))
        at = field.end()
        if at >= end or len(headers) > MAX_HEADERS:
            raise BadMessage("there are too many headers", 431)
    return headers


def request_bytes(method: bytes, target: bytes, headers: RawHeaders) -> bytes:
    """Return the head of a request as it is sent."""
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, target, _lines(headers))


def response_bytes(status: int, reason: bytes, headers: RawHeaders) -> bytes:
    """Return the head of an answer as it is sent."""
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (status, reason, _lines(headers))


def chunk(content: bytes) -> bytes:
    """Return content, of which there is some, as a chunk."""
    return b"%x\r\n%s\r\n" % (len(content), content)


LAST_CHUNK = b"0\r\n\r\n"


def _lines(headers: RawHeaders) -> bytes:
    return b"".join([b"%s: %s\r\n" % pair for pair in headers])
