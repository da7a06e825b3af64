"""One call of the agent about files: frames both ways, never more than one piece in memory.

The frames are those of ``agent files``: u8 type, u32 length (big endian), payload. SPEC asks, DATA
and END store; HEAD or FAILED answers, DATA and END follow. What has no END was cut off.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import structlog

from controlplane.errors import RequestTimeout
from workspaces.files.refusals import cut_off, refusal, unreachable
from workspaces.runtimes.base import AgentChannel, LaunchError

log = structlog.get_logger(__name__)

PIECE_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
ANSWER_SECONDS = 600.0
"""How long a whole answer may take: before it there may be a hash of gigabytes, or a removal."""
SILENCE_SECONDS = 60.0
"""How long the workspace may be waited for until ``PROGRESS_BYTES`` more have come or gone."""
PROGRESS_BYTES = 64 * 1024
LOOK_SECONDS = 1.0
"""How often it is looked whether somebody still waits for the answer."""

_SPEC, _DATA, _END, _HEAD, _FAILED = b"S", b"D", b"E", b"H", b"F"
_PREFIX = 5


class FileCall:
    """A call that was begun. Has to be closed; everything it raises is for the client.

    ``abandoned`` tells whether nobody waits for the answer any more; then it is given up.
    """

    def __init__(
        self,
        channel: AgentChannel,
        spec: dict[str, Any],
        abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._channel = channel
        self._abandoned = abandoned
        self._waited = 0.0
        self._moved = 0
        self._looked_at = time.monotonic()
        self._received = b""
        self._ended = False
        try:
            self._send(_SPEC, json.dumps(spec).encode("ascii"))
        except BaseException:
            channel.close()
            raise

    def answer(self) -> dict[str, Any]:
        """Return the members of the next answer; raise what the workspace refuses."""
        until = time.monotonic() + ANSWER_SECONDS
        kind, length = self._prefix(until)
        if kind not in (_HEAD, _END, _FAILED) or length > MAX_ANSWER_BYTES:
            raise cut_off()
        told = _members(self._take(length, until))
        if kind == _FAILED:
            raise refusal(told)
        return told

    def store(self, content: IO[bytes]) -> dict[str, Any]:
        """Give it all of ``content``; return what it says when that is stored."""
        try:
            while piece := content.read(PIECE_BYTES):
                if self._has_answered():
                    return self.answer()
                self._send(_DATA, piece)
            self._send(_END, b"")
        except LaunchError as error:
            if error.code == "agent-silent":
                raise unreachable(error) from error
            # It gave up on the way; mostly it has said why.
            return self.answer()
        return self.answer()

    def content(self, length: int | None = None) -> Iterator[bytes]:
        """Give the pieces of what it sends, to their proper end, ``length`` bytes if it is known.

        The last piece is given when that end is known: who has all bytes takes them for sound.
        """
        held = b""
        most = math.inf if length is None else length
        while True:
            kind, left = self._prefix()
            if kind == _END:
                if length is not None and most:
                    raise cut_off()
                if held:
                    yield held
                return
            # Without an end it would be read for ever, whoever still waits for it.
            if kind != _DATA or not 0 < left <= most:
                raise cut_off()
            most -= left
            while left:
                if not self._received:
                    self._receive()
                piece, self._received = self._received[:left], self._received[left:]
                left -= len(piece)
                if held:
                    yield held
                held = piece

    def close(self) -> None:
        """Give the call up, or its connection back."""
        self._channel.close()

    # ------------------------------------------------------------------ details

    def _send(self, kind: bytes, payload: bytes) -> None:
        frame = kind + len(payload).to_bytes(4, "big") + payload
        # No frame is so long that a workspace which takes it at all needs more time.
        self._channel.write(frame, timeout=SILENCE_SECONDS, within=SILENCE_SECONDS)

    def _has_answered(self) -> bool:
        if not self._received:
            self._received = self._channel.read(0) or b""
        return bool(self._received)

    def _prefix(self, until: float | None = None) -> tuple[bytes, int]:
        prefix = self._take(_PREFIX, until)
        return prefix[:1], int.from_bytes(prefix[1:], "big")

    def _take(self, count: int, until: float | None = None) -> bytes:
        while len(self._received) < count:
            self._receive(until)
        found, self._received = self._received[:count], self._received[count:]
        return found

    def _receive(self, until: float | None = None) -> None:
        """Wait for more until then; otherwise as long as a workspace may be waited for."""
        began = time.monotonic()
        limit = began + SILENCE_SECONDS - self._waited if until is None else until
        while (found := self._read(limit)) is None:
            if time.monotonic() >= limit:
                log.warning("file_call_silent", seconds=time.monotonic() - began)
                raise cut_off()
            self._require_client()
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._require_client()
        if not found:
            code = self._channel.exit_code()
            log.warning("file_call_cut_off", exit_code=code, said=self._channel.errors()[-500:])
            raise cut_off()
        self._received += found
        if until is None:
            self._count(time.monotonic() - began, len(found))

    def _require_client(self) -> None:
        self._looked_at = time.monotonic()
        if self._abandoned():
            raise RequestTimeout("The client ended the connection before the answer came.")

    def _read(self, limit: float) -> bytes | None:
        left = max(0.0, limit - time.monotonic())
        try:
            return self._channel.read(min(left, LOOK_SECONDS))
        except LaunchError as error:
            raise unreachable(error) from error

    def _count(self, seconds: float, moved: int) -> None:
        """Note what was waited for it; a byte now and then buys it no time."""
        self._waited += seconds
        self._moved += moved
        if self._moved >= PROGRESS_BYTES:
            self._waited, self._moved = 0.0, 0


def _members(content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
        # Half a character is JSON, and cannot be sent to anybody.
        json.dumps(told, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise cut_off()
    return told
