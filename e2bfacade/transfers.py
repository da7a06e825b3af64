"""``/files``: the content of files both ways, for SDKs and for signed addresses."""

from __future__ import annotations

import asyncio
import io
import mmap
import posixpath
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Any, cast

from controlplane_client import AsyncWorkspace, Problem
from e2bfacade.file_calls import absolute
from e2bfacade.http_call import Exchange
from e2bfacade.process_calls import check_user
from e2bfacade.refused import Refused, refusal_of, unsupported
from e2bfacade.sandbox_access import Callers, Signature

MAX_PARTS = 1_000
_HEAD_BYTES = 16 * 1024
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;]{1,200}))')
_FILENAME = re.compile(rb'filename="((?:[^"\\]|\\.)*)"')
_METADATA = "x-metadata-"


class Transfers:
    """Answers ``GET`` and ``POST /files``."""

    def __init__(self, callers: Callers, max_file_bytes: int) -> None:
        self._callers, self._max_file_bytes = callers, max_file_bytes

    async def answer(self, exchange: Exchange) -> None:
        """Answer one call. Raises ``Refused`` and the client's errors."""
        operations = {"GET": "read", "POST": "write"}
        if exchange.method not in operations:
            raise unsupported(f"{exchange.method} /files")
        path, user = exchange.query.get("path", ""), exchange.query.get("username", "")
        if value := exchange.query.get("signature"):
            expires_at = exchange.query.get("signature_expiration", "")
            signature = Signature(value, expires_at, path, user, operations[exchange.method])
            workspace = await self._callers.workspace_of_signature(exchange, signature)
        else:
            self._callers.refuse_pages(exchange)
            workspace = self._callers.workspace_of(exchange)
        await check_user(exchange, workspace, user)
        if exchange.method == "GET":
            await self._send(exchange, workspace, path)
        else:
            await self._store(exchange, workspace, path)

    async def _send(self, exchange: Exchange, workspace: AsyncWorkspace, path: str) -> None:
        if not path:
            raise Refused(400, "invalid_argument", "path has to say which file.")
        try:
            info = await workspace.files.stat(path)
            if info.is_dir:
                raise Refused(400, "invalid_argument", f"{path} is a folder.")
        except Problem as problem:
            raise refusal_of(problem, workspace.id) from None

        async def send() -> None:
            async with aclosing(workspace.files.stream(path)) as parts:
                # Its head is sent when the first bytes are there: until then it can be refused.
                first = await anext(parts, b"")
                name = re.sub(r"[^\w. -]", "_", posixpath.basename(path), flags=re.ASCII)
                await exchange.begin(
                    200,
                    {
                        "content-type": "application/octet-stream",
                        "content-disposition": f'attachment; filename="{name}"',
                        "x-content-type-options": "nosniff",
                    },
                )
                await exchange.more(first)
                async for part in parts:
                    await exchange.more(part)
                await exchange.end()

        await exchange.while_connected(send())

    async def _store(self, exchange: Exchange, workspace: AsyncWorkspace, path: str) -> None:
        if any(name.startswith(_METADATA) for name in exchange.headers):
            raise unsupported("metadata of files")
        kind = exchange.headers.get("content-type", "")
        with tempfile.TemporaryFile() as spool:
            await self._receive(exchange, spool)
            if not kind.startswith("multipart/form-data"):
                if not path:
                    raise Refused(400, "invalid_argument", "path has to say which file.")
                stored = [await self._write(workspace, path, spool)]
            else:
                stored = await self._store_parts(workspace, path, kind, spool)
        await exchange.answer_json(200, stored)

    async def _store_parts(
        self, workspace: AsyncWorkspace, path: str, kind: str, spool: IO[bytes]
    ) -> list[dict[str, str]]:
        found = _BOUNDARY.search(kind)
        if found is None or not spool.tell():
            raise Refused(400, "invalid_argument", "The form has no boundary, or is empty.")
        with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as content:
            parts = list(parts_of(content, (found[1] or found[2]).encode("latin-1")))
            if not parts:
                raise Refused(400, "invalid_argument", "The form has no file.")
            if path and len(parts) > 1:
                raise Refused(400, "invalid_argument", "path is for one file; the form has more.")
            named = [(path or part.name, part) for part in parts]
            if not all(name for name, _ in named):
                raise Refused(400, "invalid_argument", "A file of the form has no name.")
            return [
                await self._write(workspace, name, Slice(content, part.start, part.end))
                for name, part in named
            ]

    async def _receive(self, exchange: Exchange, spool: IO[bytes]) -> None:
        """Write the body to the disk, unpacked when it is compressed."""
        encoding = exchange.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"identity", "gzip"}:
            raise Refused(415, "invalid_argument", "The body may be compressed with gzip only.")
        unpack = zlib.decompressobj(31) if encoding == "gzip" else None
        broken = Refused(400, "invalid_argument", "The body is not valid gzip.")
        size, begun = 0, False
        async for part in exchange.body():
            begun = True
            while part:
                if unpack is not None and unpack.eof:
                    raise broken
                try:
                    piece = part if unpack is None else unpack.decompress(part, 1024 * 1024)
                except zlib.error:
                    raise broken from None
                if unpack is not None and unpack.unused_data:
                    raise broken
                part = b"" if unpack is None else unpack.unconsumed_tail
                size += len(piece)
                if size > self._max_file_bytes:
                    told = f"A file may have at most {self._max_file_bytes} bytes."
                    raise Refused(413, "invalid_argument", told)
                await asyncio.to_thread(spool.write, piece)
        if unpack is not None and begun and not unpack.eof:
            raise broken
        await asyncio.to_thread(spool.flush)

    async def _write(
        self, workspace: AsyncWorkspace, path: str, content: io.RawIOBase | IO[bytes]
    ) -> dict[str, str]:
        content.seek(0)
        await workspace.files.write(path, cast("IO[bytes]", content))
        whole = await absolute(workspace, path)
        return {"name": posixpath.basename(whole), "type": "file", "path": whole}


@dataclass(frozen=True)
class Part:
    """A file of a form: its name, and where its content begins and ends."""

    name: str
    start: int
    end: int


def parts_of(content: mmap.mmap | bytes, boundary: bytes) -> Iterator[Part]:
    """Give the files of a form (RFC 7578). Raises ``Refused`` for what is no form."""
    broken = Refused(400, "invalid_argument", "The form is malformed.")
    mark = b"--" + boundary
    if content[: len(mark)] != mark:
        raise broken
    at = len(mark)
    for _ in range(MAX_PARTS):
        if content[at : at + 2] == b"--":
            return
        start = content.find(b"\r\n\r\n", at, at + _HEAD_BYTES)
        end = content.find(b"\r\n" + mark, start + 2)
        if start < 0 or end < 0:
            raise broken
        named = _FILENAME.search(content[at:start])
        if named is not None:
            yield Part(_plain(named[1]), start + 4, max(end, start + 4))
        at = end + 2 + len(mark)
    raise Refused(400, "invalid_argument", f"A form may have at most {MAX_PARTS} files.")


def _plain(name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    text = re.sub(r"\\(.)", r"\1", text)
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


class Slice(io.RawIOBase):
    """A part of what lies in memory or on the disk, as a file; nothing is copied."""

    def __init__(self, content: mmap.mmap | bytes, start: int, end: int) -> None:
        self._content, self._start, self._size, self._at = content, start, end - start, 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """Its place can be changed."""
        return True

    def tell(self) -> int:
        """Return how much was read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read on."""
        count = max(0, min(len(buffer), self._size - self._at))
        start = self._start + self._at
        buffer[:count] = self._content[start : start + count]
        self._at += count
        return count
