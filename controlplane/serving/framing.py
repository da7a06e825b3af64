"""One request as it arrives, until all of it is there. No socket is touched here.

Only what says where a request ends is read: gunicorn's parser judges it afterwards, and refuses
what it does not like. What is ambiguous has no body here, and its connection is not used again.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import IO
from urllib.parse import unquote_to_bytes

from gunicorn.http.errors import (
    ChunkMissingTerminator,
    InvalidChunkSize,
    LimitRequestHeaders,
)
from gunicorn.util import split_request_uri

from controlplane.http.spooled_body import SpooledBody

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 4096
DISCARDED_BYTES = 64 * 1024 * 1024
"""Whoever sends more of a body that is too large is cut off."""
_HEX = frozenset(b"0123456789abcdefABCDEF")


class Incoming:
    """What has arrived of one request.

    ``head`` is complete when it is set, and so is ``path``; ``body`` is decoded, and never longer
    than one byte above the limit of its path, which is enough to refuse it. The rest is counted and
    thrown away. It is kept in memory, or in what ``spool_of`` makes for its path.
    """

    def __init__(
        self,
        limit_of: Callable[[str], int],
        spool_of: Callable[[str], SpooledBody | None] = lambda _: None,
    ) -> None:
        self.head: bytes | None = None
        self.path = ""
        self.body: bytearray | SpooledBody = bytearray()
        self.complete = False
        self.last = False
        """Whether nothing that follows on this connection can be understood."""
        self.expects_continue = False
        self.fault: Exception | None = None
        self._limit_of = limit_of
        self._spool_of = spool_of
        self._limit = 0
        self._raw = bytearray()
        self._seen = 0
        self._length = 0
        self._chunked = False
        self._state = "size"
        self._left = 0

    @property
    def begun(self) -> bool:
        """Whether anything of the request is there."""
        return self.head is not None or bool(self._raw)

    def discard(self) -> None:
        """Give the disk space of a body back; it is not read any more."""
        if isinstance(self.body, SpooledBody):
            self.body.close()

    @property
    def held(self) -> int:
        """How many bytes of memory the body takes."""
        return self.body.held if isinstance(self.body, SpooledBody) else len(self.body)

    def opened(self) -> IO[bytes] | SpooledBody:
        """Return the body that has come, to be read."""
        return self.body.opened() if isinstance(self.body, SpooledBody) else BytesIO(self.body)

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what belongs to the next request."""
        if self.head is not None and not self._chunked and not self._raw:
            left = self._length - self._seen
            if len(data) < left:
                # Most of a large body, which is copied once only.
                self._keep(data)
                self._seen += len(data)
                return b""
        self._raw += data
        if self.head is None:
            self._read_head()
        if self.head is not None and not self.complete:
            if self._chunked:
                self._read_chunks()
            else:
                self._read_length()
        if not self.complete:
            return b""
        surplus, self._raw = bytes(self._raw), bytearray()
        return surplus

    def _read_head(self) -> None:
        end = self._raw.find(b"\r\n\r\n")
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._raw) > MAX_HEAD_BYTES):
            self._fail(LimitRequestHeaders("the head is too large"))
        elif end >= 0:
            self.head = bytes(self._raw[: end + 4])
            del self._raw[: end + 4]
            self._settle_framing(self.head)

    def _settle_framing(self, head: bytes) -> None:
        request_line, *lines = head[:-4].split(b"\r\n")
        lengths: list[bytes] = []
        codings: list[bytes] = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                lengths.append(value.strip())
            elif name.lower() == b"transfer-encoding":
                codings.append(value.strip().lower())
            elif name.lower() == b"expect":
                self.expects_continue = value.strip().lower() == b"100-continue"
        words = request_line.split(b" ")
        target = words[1] if len(words) > 1 else b""
        self.path = unquote_to_bytes(_path_of(target)).decode("latin-1")
        self._limit = self._limit_of(self.path)
        spool = self._spool_of(self.path)
        if spool is not None:
            self.body = spool
        self._chunked = codings == [b"chunked"] and not lengths
        if self._chunked:
            return
        if codings or len(lengths) > 1:
            self.last = True
        elif lengths:
            self._settle_length(lengths[0])

    @property
    def _most(self) -> int:
        """How much of a body is taken, be it to be thrown away."""
        return max(self._limit + 1, DISCARDED_BYTES)

    def _settle_length(self, given: bytes) -> None:
        if not given.isdigit() or len(given) > 18:
            self.last = True
            return
        self._length = int(given)
        if self._length > self._limit and self.expects_continue:
            # It asked before it sent, so it is told before it sends.
            self._length, self.last = 0, True
        elif self._length > self._most:
            self._length, self.last = self._most, True

    def _read_length(self) -> None:
        self._take(min(len(self._raw), self._length - self._seen))
        self.complete = self._seen >= self._length

    def _take(self, count: int) -> None:
        """Move so many bytes into the body, or past it."""
        self._keep(self._raw[:count])
        del self._raw[:count]
        self._seen += count

    def _keep(self, data: bytes | bytearray) -> None:
        room = self._limit + 1 - len(self.body)
        if room > 0:
            self.body.extend(data if len(data) <= room else data[:room])

    def _read_chunks(self) -> None:
        while not self.complete:
            if self._state == "data":
                count = min(len(self._raw), self._left)
                self._take(count)
                self._left -= count
                if self._left:
                    break
                self._state = "end"
            line = self._line()
            if line is None:
                break
            self._read_line(line)
        if not self.complete and self._seen > self._most:
            self.last = self.complete = True

    def _read_line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                self._fail(ChunkMissingTerminator(line))
            self._state = "size"
        elif self._state == "size":
            size = line.partition(b";")[0].strip(b" \t")
            if not 0 < len(size) <= 16 or not _HEX.issuperset(size):
                self._fail(InvalidChunkSize(line))
                return
            self._left = int(size, 16)
            self._state = "data" if self._left else "trailer"
        else:
            self.complete = not line

    def _line(self) -> bytes | None:
        """Return the next line without its end; None while it is not there."""
        end = self._raw.find(b"\r\n", 0, MAX_LINE_BYTES)
        if end < 0:
            if len(self._raw) >= MAX_LINE_BYTES:
                self._fail(InvalidChunkSize(bytes(self._raw[:40])))
            return None
        line = bytes(self._raw[:end])
        del self._raw[: end + 2]
        # Lines count as well, or a body of trailers would have no end.
        self._seen += 0 if self._state == "end" else len(line) + 2
        return line

    def _fail(self, fault: Exception) -> None:
        self.fault, self.last, self.complete = fault, True, True


def _path_of(target: bytes) -> bytes:
    """Return the path of a request's target as gunicorn takes it, of an absolute address too."""
    try:
        path: str = split_request_uri(target.decode("latin-1")).path
    except ValueError:  # gunicorn refuses it
        return b""
    return path.encode("latin-1")
