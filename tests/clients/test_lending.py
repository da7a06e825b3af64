"""What ``svc mcp --inside`` makes of the bytes that come from a workspace, whatever they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controlplane_cli.mcp_server.lending import Frames, Lent, RelayEnded
from controlplane_cli.mcp_server.relay import HEAD, PIECE


def test_frames_come_whole_however_they_are_cut() -> None:
    sent = [(1, b"one"), (2, b""), (1, bytes(PIECE))]
    content = b"".join(HEAD.pack(number, len(each)) + each for number, each in sent)
    for size in (1, 7, 4096, len(content)):
        frames = Frames()
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        assert [frame for piece in pieces for frame in frames.feed(piece)] == sent


def test_what_claims_to_be_endless_is_not_collected() -> None:
    with pytest.raises(RelayEnded, match="makes no sense"):
        list(Frames().feed(HEAD.pack(1, PIECE + 1)))


def test_what_comes_after_the_end_of_a_connection_opens_no_other_one(tmp_path: Path) -> None:
    place = str(tmp_path / "socket")
    opened: list[int] = []
    said: list[tuple[int, bytes]] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        await reader.read(1)
        writer.close()

    async def passed_on() -> None:
        over = asyncio.Event()

        async def send(number: int, content: bytes) -> None:
            said.append((number, content))
            over.set()

        async with await asyncio.start_unix_server(served, place):
            nobody: Any = None
            lent = Lent(nobody, 1, place)
            await lent._got(1, b"first", send)
            await over.wait()
            await lent._got(1, b"late", send)
            await lent._got(1, b"", send)
            assert (lent._open, lent._half) == ({}, set())
            over.clear()
            await lent._got(2, b"first", send)
            await lent._got(2, b"", send)
            await over.wait()
            assert (lent._open, lent._half) == ({}, set())

    asyncio.run(passed_on())
    assert said == [(1, b""), (2, b"")]
    assert len(opened) == 2
