"""The frames of a `files` call: u8 type, u32 length (big endian), payload; JSON is ASCII.

The caller sends SPEC, and for what is stored DATA and an END, which alone makes it count. It gets
HEAD or FAILED, then DATA, then END or FAILED. A stream without its END was cut off.
"""

from __future__ import annotations

import errno
import json
import os
import select
from typing import Any, Dict, Iterator, Tuple

SPEC, DATA, END, HEAD, FAILED = b"S", b"D", b"E", b"H", b"F"
PREFIX_BYTES = 5
MAX_DATA = 256 * 1024
_MAX_SPEC_BYTES = 256 * 1024


class Refusal(Exception):
    """What was asked for is not done; `code` and message are for the client."""

    def __init__(self, code: str, message: str, **members: Any) -> None:
        super().__init__(message)
        self.code = code
        self.members = members


class CallerGone(Exception):
    """The other side went away, or does not speak these frames."""


_OF_ERRNO = {
    errno.ENOENT: ("file-not-found", "There is no such file or folder in the workspace."),
    errno.ENOTDIR: ("file-not-found", "A part of the path is a file, not a folder."),
    errno.EACCES: ("file-permission-denied", "The workspace's user may not do this."),
    errno.EPERM: ("file-permission-denied", "The workspace's user may not do this."),
    errno.EROFS: ("file-permission-denied", "Nothing can be written here: it is read-only."),
    errno.EISDIR: ("not-a-file", "This is a folder."),
    errno.EEXIST: ("file-exists", "Something with this name already exists."),
    errno.ENOTEMPTY: ("directory-not-empty", "The folder is not empty."),
    errno.ELOOP: ("file-link-loop", "The path goes through a loop of links."),
    errno.ENAMETOOLONG: ("file-name-too-long", "The path, or a name in it, is too long."),
    errno.ENOSPC: ("workspace-disk-full", "The workspace's disk is full."),
    errno.EDQUOT: ("workspace-disk-full", "The workspace's user has reached a disk quota."),
    errno.EXDEV: ("file-other-disk", "The two places are on different disks; copy it instead."),
    errno.EBUSY: ("file-in-use", "The system is using this file or folder."),
    errno.ETXTBSY: ("file-in-use", "A program is running from this file."),
}


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told of what ended its call."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, OSError):
        code, message = _OF_ERRNO.get(
            error.errno or 0,
            ("file-failed", f"The workspace's operating system refused: {error.strerror}."),
        )
        return Refusal(code, message)
    if isinstance(error, RecursionError):
        return Refusal("file-failed", "The folders are nested too deep.")
    # Of a call without an answer the service says this to the client.
    return Refusal("workspace-unreachable", "The call was ended early.")


class Wire:
    """The caller, on the descriptors 0 and 1."""

    def __init__(self, source: int = 0, target: int = 1) -> None:
        self.source = source
        self.target = target
        self._buffer = bytearray(MAX_DATA)

    def spec(self) -> Dict[str, Any]:
        """What is asked for; raises CallerGone."""
        kind, length = self._prefix()
        if kind != SPEC or length > _MAX_SPEC_BYTES:
            raise CallerGone
        try:
            spec = json.loads(bytes(self._payload(length)))
        except ValueError:
            raise CallerGone from None
        if not isinstance(spec, dict):
            raise CallerGone
        return spec

    def data(self) -> Iterator[memoryview]:
        """The pieces of what is to be stored, to their proper end; each is used before the next.

        Raises CallerGone when the end does not come.
        """
        while True:
            kind, length = self._prefix()
            if kind == END:
                return
            if kind != DATA or length > MAX_DATA:
                raise CallerGone
            yield self._payload(length)

    def require_caller(self) -> None:
        """Raise CallerGone when the other side has gone, for what takes long without a word."""
        poll = select.poll()
        # Of a socket only this tells that the other side has closed it; a pipe says so by itself.
        poll.register(self.source, select.POLLRDHUP)
        if poll.poll(0):
            raise CallerGone

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send one frame."""
        self.send_prefix(kind, len(payload))
        view = memoryview(payload)
        while view:
            view = view[self._write(view) :]

    def send_json(self, kind: bytes, value: Dict[str, Any]) -> None:
        """Send one frame of JSON."""
        self.send(kind, json.dumps(value).encode("ascii"))

    def send_prefix(self, kind: bytes, length: int) -> None:
        """Begin a frame whose payload somebody else sends."""
        view = memoryview(kind + length.to_bytes(4, "big"))
        while view:
            view = view[self._write(view) :]

    def send_file(self, fd: int, offset: int, count: int) -> None:
        """Send so many bytes of a file; raises Refusal when it has become shorter."""
        while count:
            piece = min(count, MAX_DATA)
            self.send_prefix(DATA, piece)
            left = piece
            while left:
                try:
                    sent = os.sendfile(self.target, fd, offset, left)
                except OSError:
                    # Inside a frame there is no way to say what is wrong.
                    raise CallerGone from None
                if not sent:
                    raise CallerGone  # the frame cannot be filled: the caller sees it cut off
                offset += sent
                left -= sent
            count -= piece

    def _write(self, view: memoryview) -> int:
        try:
            return os.write(self.target, view)
        except (BrokenPipeError, ConnectionError):
            raise CallerGone from None

    def _prefix(self) -> Tuple[bytes, int]:
        prefix = bytes(self._payload(PREFIX_BYTES))
        return prefix[:1], int.from_bytes(prefix[1:], "big")

    def _payload(self, length: int) -> memoryview:
        view = memoryview(self._buffer)[:length]
        at = 0
        while at < length:
            try:
                count = os.readv(self.source, [view[at:]])
            except ConnectionError:
                count = 0
            if not count:
                raise CallerGone
            at += count
        return view
