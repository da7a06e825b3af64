"""The files of a workspace."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import httpx

from controlplane_client._async.connection import AsyncConnection, Body
from controlplane_client._async.platform import blocking, sleep
from controlplane_client.errors import Conflict, ControlPlaneError, Unreachable
from controlplane_client.local_files import CHUNK_BYTES, packed, unpacked
from controlplane_client.models import FileInfo, Written
from controlplane_client.retrying import seconds_before

Names = list[str]
Entries = list[FileInfo]


class AsyncFiles:
    """Reads and changes files as the workspace's user.

    Paths are absolute, or relative to where commands begin. Bytes that are not UTF-8 are
    surrogates, as ``os.fsdecode`` makes them.
    """

    def __init__(self, connection: AsyncConnection, workspace_id: str) -> None:
        self._connection = connection
        self._workspace = f"/v1/workspaces/{workspace_id}"
        self._path = f"{self._workspace}/files"

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        async with aclosing(self.stream(path)) as parts:
            return b"".join([part async for part in parts])

    async def read_text(self, path: str) -> str:
        """Return the text of a file in UTF-8."""
        return (await self.read(path)).decode()

    async def stream(
        self, path: str, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file from ``start`` up to, not including, ``end``.

        An interrupted transfer continues where it was, as long as the file has not changed.
        """
        position, tag, failures = start, None, 0
        while end is None or position < end:
            headers = {} if tag is None else {"if-match": tag}
            if position or end is not None:
                headers["range"] = f"bytes={position}-{'' if end is None else end - 1}"
            try:
                async with self._connection.answer(
                    "GET",
                    self._path,
                    repeatable=True,
                    headers=headers,
                    streamed=True,
                    **_query(path),
                ) as answer:
                    tag = answer.headers.get("etag")
                    async for part in answer.aiter_bytes(CHUNK_BYTES):
                        position, failures = position + len(part), 0
                        yield part
                return
            except httpx.TransportError as error:
                failures += 1
                if tag is None or failures > self._connection.retries:
                    raise Unreachable(f"the transfer of {path} was interrupted") from error
                await sleep(seconds_before(failures))

    async def write(
        self,
        path: str,
        data: bytes | str | IO[bytes],
        *,
        mode: int | None = None,
        if_match: str | None = None,
        only_new: bool = False,
    ) -> Written:
        """Store a file, all or nothing; missing folders are created.

        ``if_match`` is the SHA-256 that the file must have; with ``only_new`` there must be none.
        Otherwise it raises ``PreconditionFailed``.
        """
        headers = {"content-type": "application/octet-stream"}
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        if only_new:
            headers["if-none-match"] = "*"
        octal = None if mode is None else f"{mode:o}"
        content = _body(data)
        async with self._connection.answer(
            "PUT",
            self._path,
            # A condition holds no more once the first try has written.
            repeatable=len(headers) == 1 and _is_repeatable(data),
            content=content,
            headers=headers,
            mode=octal,
            **_query(path),
        ) as answer:
            told = answer.json()
            return Written(told["size"], told["sha256"], answer.status_code == 201)

    async def list(self, path: str = ".") -> list[FileInfo]:
        """Return what is in a folder, in the order of the names."""
        found, cursor = await self.page(path, limit=1000)
        while cursor is not None:
            more, cursor = await self.page(path, cursor=cursor, limit=1000)
            found += more
        return found

    async def page(
        self, path: str = ".", *, cursor: str | None = None, limit: int = 100
    ) -> tuple[Entries, str | None]:
        """Return ``limit`` names of a folder, the first or after a cursor, and the next cursor."""
        told = await self._connection.json(
            "GET",
            f"{self._path}/list",
            repeatable=True,
            limit=limit,
            cursor=cursor,
            **_query(path),
        )
        return [FileInfo.of(item) for item in told["items"]], told.get("nextCursor")

    async def stat(self, path: str, *, hash: bool = False) -> FileInfo:
        """Describe what is at a path; a link is not followed. ``hash`` adds a file's SHA-256."""
        return FileInfo.of(
            await self._connection.json(
                "GET",
                f"{self._path}/stat",
                repeatable=True,
                hash=True if hash else None,
                **_query(path),
            )
        )

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link, an empty folder, or with ``recursive`` a full one."""
        await self._connection.json(
            "DELETE", self._path, recursive=True if recursive else None, **_query(path)
        )

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename or move a file or folder."""
        body = {**_members("from", source), **_members("to", target), "overwrite": overwrite}
        await self._connection.json("POST", f"{self._path}/move", body)

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Create a folder; with ``parents`` also those above it, and it may exist already."""
        body = {**_query(path), "parents": parents}
        await self._connection.json("POST", f"{self._path}/mkdir", body, repeatable=parents)

    async def upload(self, local: str | Path, path: str) -> None:
        """Copy a file, with its permissions, or what is in a folder, to ``path``."""
        source = Path(local)
        if source.is_dir():
            file: IO[bytes] = await blocking(packed, source)
            with file:
                await self.unpack(file, path)
            return
        mode = (await blocking(source.stat)).st_mode & 0o777
        with await blocking(source.open, "rb") as opened:
            await self.write(path, opened, mode=mode)

    async def download(self, path: str, local: str | Path) -> Names:
        """Copy a file, or what is in a folder, to ``local``.

        A file is put in place when all of it has arrived. Returns the names in a
        folder that were left out because they lead outside it.
        """
        target = Path(local)
        try:
            await self._download_file(path, target)
        except Conflict as problem:
            if problem.code != "not-a-file":
                raise
        else:
            return []
        with tempfile.TemporaryFile() as file:
            async with aclosing(self.pack(path)) as parts:
                async for part in parts:
                    await blocking(file.write, part)
            return await blocking(unpacked, file, target)

    async def _download_file(self, path: str, target: Path) -> None:
        # Of "." and "/" too, which have no name.
        partial = target.parent / f".{target.name}.part"
        try:
            with partial.open("wb") as file:
                await self._copy(path, file)
            await blocking(partial.replace, target)
        finally:
            partial.unlink(missing_ok=True)

    async def _copy(self, path: str, file: IO[bytes]) -> None:
        async with aclosing(self.stream(path)) as parts:
            async for part in parts:
                await blocking(file.write, part)

    async def pack(self, path: str = ".") -> AsyncGenerator[bytes, None]:
        """Yield a tar of a folder or file. One that cannot be completed raises ``Unreachable``."""
        try:
            async with self._connection.answer(
                "GET",
                f"{self._workspace}/archive",
                repeatable=True,
                streamed=True,
                **_query(path),
            ) as answer:
                async for part in answer.aiter_bytes(CHUNK_BYTES):
                    yield part
        except httpx.TransportError as error:
            raise Unreachable(f"the archive of {path} was interrupted") from error

    async def unpack(self, data: bytes | IO[bytes], path: str = ".") -> int:
        """Unpack a tar into a folder, all or nothing; return how many files it had."""
        told = await self._connection.json(
            "PUT",
            f"{self._workspace}/archive",
            repeatable=_is_repeatable(data),
            content=_body(data),
            headers={"content-type": "application/x-tar"},
            **_query(path),
        )
        return int(told["files"])


def _query(path: str) -> dict[str, Any]:
    return _members("", path)


def _members(prefix: str, path: str) -> dict[str, Any]:
    name = f"{prefix}Path" if prefix else "path"
    try:
        path.encode()
    except UnicodeEncodeError:
        exact = path.encode("utf-8", "surrogateescape")
        return {f"{name}Base64": base64.b64encode(exact).decode()}
    return {name: path}


def _is_repeatable(data: bytes | str | IO[bytes]) -> bool:
    return isinstance(data, bytes | str) or data.seekable()


def _body(data: bytes | str | IO[bytes]) -> Body:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return data
    file = data
    start = file.tell() if file.seekable() else None

    async def parts() -> AsyncIterator[bytes]:
        if start is not None:
            await blocking(file.seek, start)
        while True:
            part = await blocking(file.read, CHUNK_BYTES)
            if not isinstance(part, bytes):
                raise ControlPlaneError("the file must be opened in binary mode ('rb')")
            if not part:
                return
            yield part

    return parts
