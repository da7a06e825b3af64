"""Runs in a workspace: passes on, over its own pipes, what connects to a port of its loopback.

``python3 relay.py PORT``. A frame is the number of a connection and a length, both of four bytes,
and that many bytes; none are the end of what one side has to say. Number 0 says that it listens.
Given to ``python3 -c``, so it needs nothing but Python 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import sys

HEAD = struct.Struct(">II")
PIECE = 65536


def tell(number: int, content: bytes) -> None:
    """Write a frame."""
    sys.stdout.buffer.write(HEAD.pack(number, len(content)) + content)
    sys.stdout.buffer.flush()


async def main(port: int) -> None:
    """Pass on until there is no more input."""
    writers: dict[int, asyncio.StreamWriter] = {}
    numbers = itertools.count(1)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        writers[number] = writer
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(PIECE):
                tell(number, part)
        tell(number, b"")

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    given = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(given)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    tell(0, b"")
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            number, length = HEAD.unpack(await given.readexactly(HEAD.size))
            content = await given.readexactly(length)
            writer = writers.get(number)
            if writer is None:
                continue
            with contextlib.suppress(ConnectionError):
                writer.write(content)
                await writer.drain()
            if not content:
                writers.pop(number).close()
    server.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"port {sys.argv[1]} of the workspace cannot be served: {error.strerror or error}")
