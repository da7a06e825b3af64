"""One call of the agent about files: frames both ways, never more than one piece in memory.

The frames are those of ``agent files``: u8 type, u32 length (big endian), payload. SPEC asks, DATA
and END store; HEAD or FAILED answers, DATA and END follow. What has no END was cut off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import IO, Any

import structlog

from workspaces.files.refusals import cut_off, refusal, unreachable
from workspaces.runtimes.base import AgentChannel, LaunchError

log = structlog.get_logger(__name__)

PIECE_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
ANSWER_SECONDS = 600.0
"""How long the workspace may take for what it does at once: a hash of gigabytes, or a removal."""
SILENCE_SECONDS = 60.0
"""How long the next piece of something that is sent may take."""

_SPEC, _DATA, _END, _HEAD, _FAILED = b"S", b"D", b"E", b"H", b"F"
_PREFIX = 5


class FileCall:
    """A call that was begun. Has to be closed; everything it raises is for the client."""

    def __init__(self, channel: AgentChannel, spec: dict[str, Any]) -> None:
        self._channel = channel
        self._received = b""
        self._ended = False
        try:
            self._send(_SPEC, json.dumps(spec).encode("ascii"))
        except BaseException:
            channel.close()
            raise

    def answer(self) -> dict[str, Any]:
        """Return the members of the next answer; raise what the workspace refuses."""
        kind, length = self._prefix(ANSWER_SECONDS)
        if kind not in (_HEAD, _END, _FAILED) or length > MAX_ANSWER_BYTES:
            raise cut_off()
        told = _members(self._take(length))
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
        except LaunchError:
            # It gave up on the way; mostly it has said why.
            return self.answer()
        return self.answer()

    def content(self) -> Iterator[bytes]:
        """Give the pieces of what it sends, to their proper end.

        The last piece is given when that end is known: who has all bytes takes them for sound.
        """
        held = b""
        while True:
            kind, left = self._prefix(SILENCE_SECONDS)
            if kind == _END:
                if held:
                    yield held
                return
            if kind != _DATA:
                raise cut_off()
            while left:
                if not self._received:
                    self._receive(SILENCE_SECONDS)
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
        self._channel.write(frame, timeout=SILENCE_SECONDS)

    def _has_answered(self) -> bool:
        if not self._received:
            self._received = self._channel.read(0) or b""
        return bool(self._received)

    def _prefix(self, seconds: float) -> tuple[bytes, int]:
        prefix = self._take(_PREFIX, seconds)
        return prefix[:1], int.from_bytes(prefix[1:], "big")

    def _take(self, count: int, seconds: float = SILENCE_SECONDS) -> bytes:
        while len(self._received) < count:
            self._receive(seconds)
        found, self._received = self._received[:count], self._received[count:]
        return found

    def _receive(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        try:
            found = self._channel.read(max(0.0, deadline - time.monotonic()))
        except LaunchError as error:
            raise unreachable(error) from error
        if found is None:
            log.warning("file_call_silent", seconds=seconds)
            raise cut_off()
        if not found:
            code = self._channel.exit_code()
            log.warning("file_call_cut_off", exit_code=code, said=self._channel.errors()[-500:])
            raise cut_off()
        self._received += found


def _members(content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise cut_off()
    return told
