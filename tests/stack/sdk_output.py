"""All that a command in a container printed, also where the answer came late to be read.

The Docker SDK reads the head of an answer through a buffer and the output past it. What came along
with the head, because the engine was quicker than this process, is lost to it: a command that
printed ends with no output. On a loaded machine that is one in a hundred.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from docker.api.client import APIClient
from docker.utils.socket import consume_socket_output, demux_adaptor

_HEAD = 8  # one byte for the stream, three of nothing, four for the length
_PART = 64 * 1024


def _frames(reader: io.BufferedReader, *, tty: bool) -> Iterator[tuple[Any, bytes]]:
    """The parts of an answer with the number of their stream; what a terminal prints is 1."""
    if tty:
        while part := reader.read1(_PART):
            yield 1, part
        return
    while len(head := reader.read(_HEAD)) == _HEAD:
        yield head[0], reader.read(int.from_bytes(head[4:], "big"))


def _read(self: Any, response: Any, stream: bool, tty: bool = True, demux: bool = False) -> Any:
    """What the SDK's method of this place promises, read through the buffer."""
    self._raise_for_status(response)
    reader = response.raw._fp.fp
    self._disable_socket_timeout(reader.raw)  # a command may be silent for long
    frames = _frames(reader, tty=tty)
    parts: Iterator[Any] = (
        (demux_adaptor(*frame) for frame in frames) if demux else (data for _, data in frames)
    )
    if stream:
        return parts
    consume: Any = consume_socket_output
    try:
        return consume(parts, demux=demux)
    finally:
        response.close()


def read_all_output() -> None:
    """Have the SDK in this process read outputs from their beginning."""
    APIClient._read_from_socket = _read  # type: ignore[attr-defined]
