"""Tars of the working folder, in constant memory."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import IO, cast

_IN_MEMORY = 4 * 1024 * 1024


def _spool() -> IO[bytes]:
    return cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))


async def spooled(parts: AsyncGenerator[bytes, None]) -> IO[bytes]:
    """Return what comes as a file, read from its beginning."""
    file = _spool()
    async with aclosing(parts):
        async for part in parts:
            await asyncio.to_thread(file.write, part)
    file.seek(0)
    return file


async def left_out(packed: IO[bytes], paths: set[Path]) -> io.IOBase:
    """Return the tar without these paths and what is below them."""
    if not paths:
        return cast("io.IOBase", packed)
    return await asyncio.to_thread(_without, packed, {PurePosixPath(path) for path in paths})


def _without(packed: IO[bytes], paths: set[PurePosixPath]) -> io.IOBase:
    kept = _spool()
    with packed, tarfile.open(fileobj=packed) as source, tarfile.open(fileobj=kept, mode="w") as to:
        for member in source:
            name = PurePosixPath(member.name)
            if name in paths or not paths.isdisjoint(name.parents):
                continue
            to.addfile(member, source.extractfile(member) if member.isreg() else None)
    kept.seek(0)
    return cast("io.IOBase", kept)
