"""``filesystem.Filesystem``: what lies in a sandbox, and watches of its folders."""

from __future__ import annotations

import asyncio
import posixpath
import stat
from contextlib import aclosing, suppress
from typing import Any

from controlplane_client import AsyncWorkspace, Conflict, FileInfo, NotFound, Problem
from e2bfacade.connect_protocol import answer_stream, one_message
from e2bfacade.http_call import Exchange, number, text
from e2bfacade.process_calls import MOST_PING_SECONDS, PING_SECONDS, check_user, with_pings
from e2bfacade.refused import Refused, unsupported
from e2bfacade.sandbox_access import spec_of
from e2bfacade.watches import Watches

MAX_ENTRIES = 100_000
MAX_DEPTH = 64
_AT_ONCE = 8


class Filesystem:
    """Answers the calls of ``filesystem.Filesystem``."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    async def answer(self, exchange: Exchange, workspace: AsyncWorkspace, call: str) -> None:
        """Answer one call. Raises ``Refused`` and the client's errors."""
        if call == "WatchDir":
            body = await one_message(exchange)
            await check_user(exchange, workspace)
            await self._watch(exchange, workspace, body)
            return
        body = await exchange.json()
        await check_user(exchange, workspace)
        await exchange.answer_json(200, await self._answer_of(workspace, call, body))

    async def _answer_of(
        self, workspace: AsyncWorkspace, call: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        match call:
            case "Stat":
                return {"entry": await self._entry(workspace, _path(body, "path"))}
            case "MakeDir":
                return {"entry": await self._make(workspace, _path(body, "path"))}
            case "Move":
                return {"entry": await self._move(workspace, body)}
            case "ListDir":
                return {"entries": await self._list(workspace, body)}
            case "Remove":
                # Like E2B's: whoever wants it gone has what he wants when it is not there.
                with suppress(NotFound):
                    try:
                        await workspace.files.remove(_path(body, "path"), recursive=True)
                    except NotFound as problem:
                        if problem.code != "file-not-found":
                            raise Refused(502, "unavailable", str(problem)) from None
                return {}
            case "CreateWatcher":
                return {"watcherId": await self._watches.create(workspace, *_watched(body))}
            case "GetWatcherEvents":
                watcher = text(body, "watcherId")
                return {"events": self._watches.events(workspace, watcher)}
            case "RemoveWatcher":
                await self._watches.remove(workspace, text(body, "watcherId"))
                return {}
            case _:
                raise unsupported(f"filesystem.Filesystem/{call[:40]}")

    async def _entry(self, workspace: AsyncWorkspace, path: str) -> dict[str, Any]:
        info = await workspace.files.stat(path)
        return await _told(workspace, await absolute(workspace, path), info)

    async def _make(self, workspace: AsyncWorkspace, path: str) -> dict[str, Any]:
        whole = await absolute(workspace, path)
        try:
            await workspace.files.mkdir(whole, parents=False)
        except NotFound as problem:
            if problem.code != "file-not-found":
                raise
            await workspace.files.mkdir(posixpath.dirname(whole), parents=True)
            await self._make_last(workspace, whole)
        except Conflict as problem:
            raise _exists(problem, whole) from None
        return await self._entry(workspace, whole)

    async def _make_last(self, workspace: AsyncWorkspace, whole: str) -> None:
        try:
            await workspace.files.mkdir(whole, parents=False)
        except Conflict as problem:
            raise _exists(problem, whole) from None

    async def _move(self, workspace: AsyncWorkspace, body: dict[str, Any]) -> dict[str, Any]:
        source, target = _path(body, "source"), _path(body, "destination")
        whole = await absolute(workspace, target)
        await workspace.files.stat(source)
        await workspace.files.mkdir(posixpath.dirname(whole), parents=True)
        await workspace.files.move(source, whole, overwrite=True)
        return await self._entry(workspace, whole)

    async def _list(self, workspace: AsyncWorkspace, body: dict[str, Any]) -> list[dict[str, Any]]:
        top = await absolute(workspace, _path(body, "path"))
        deepest = min(max(number(body, "depth"), 1), MAX_DEPTH)
        found: list[dict[str, Any]] = []
        folders = [(top, 1)]
        while folders:
            folder, depth = folders.pop(0)
            try:
                infos = await workspace.files.list(folder)
            except Conflict as problem:
                raise Refused(400, "invalid_argument", str(problem)) from None
            except Problem:
                if depth == 1:
                    raise
                continue  # it went away meanwhile, or may not be read
            entries = await _all_told(workspace, folder, infos)
            found += entries
            if len(found) > MAX_ENTRIES:
                raise Refused(
                    400, "resource_exhausted", f"There are more than {MAX_ENTRIES} entries."
                )
            if depth < deepest:
                folders += [
                    (posixpath.join(folder, info.name), depth + 1) for info in infos if info.is_dir
                ]
        return found

    async def _watch(
        self, exchange: Exchange, workspace: AsyncWorkspace, body: dict[str, Any]
    ) -> None:
        every = number(exchange.headers, "keepalive-ping-interval", PING_SECONDS)
        seconds = min(max(every, 1), MOST_PING_SECONDS)
        values = self._watches.follow(workspace, *_watched(body))
        async with aclosing(with_pings(values, seconds, {"keepalive": {}})) as told:
            await exchange.while_connected(answer_stream(exchange, told))


async def absolute(workspace: AsyncWorkspace, path: str) -> str:
    """Return a path from the root; others begin where commands do."""
    if not path.startswith("/"):
        runtime = (await spec_of(workspace)).get("runtime", {})
        start = runtime.get("workingDirectory") or "repo"
        path = posixpath.join(runtime.get("workspaceRoot", "/workspace"), start, path)
    return "/" + posixpath.normpath(path).lstrip("/")


async def _all_told(
    workspace: AsyncWorkspace, folder: str, infos: list[FileInfo]
) -> list[dict[str, Any]]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(info: FileInfo) -> dict[str, Any]:
        async with room:
            return await _told(workspace, posixpath.join(folder, info.name), info)

    return list(await asyncio.gather(*(one(info) for info in infos)))


async def _told(workspace: AsyncWorkspace, path: str, info: FileInfo) -> dict[str, Any]:
    """Return an entry as E2B has it; of a link, the kind of what is behind it."""
    kind = info.type
    if kind == "symlink":
        with suppress(Problem):
            kind = (await workspace.files.stat(f"{path}/.")).type
    permissions = info.mode & 0o7777
    bits = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}.get(info.type, stat.S_IFREG)
    return {
        "name": _shown(posixpath.basename(path)),
        "path": _shown(path),
        "type": "FILE_TYPE_DIRECTORY" if kind == "directory" else "FILE_TYPE_FILE",
        "size": str(info.size),
        "mode": permissions,
        "permissions": stat.filemode(bits | permissions),
        "owner": _user(info.raw.get("uid")),
        "group": _user(info.raw.get("gid")),
        **({"modifiedTime": told} if (told := info.raw.get("modifiedAt")) else {}),
        **({} if info.target is None else {"symlinkTarget": _shown(info.target)}),
    }


def _user(number_of: Any) -> str:
    return {0: "root", 1000: "user"}.get(number_of, str(number_of))


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _path(body: dict[str, Any], name: str) -> str:
    path = text(body, name)
    if not path or "\0" in path:
        raise Refused(400, "invalid_argument", f"{name} has to be a path.")
    return path


def _watched(body: dict[str, Any]) -> tuple[str, bool]:
    if body.get("includeEntry"):
        raise unsupported("entries in the events of a watch (includeEntry)")
    return _path(body, "path"), bool(body.get("recursive", False))


def _exists(problem: Conflict, path: str) -> Exception:
    if problem.code == "file-exists":
        return Refused(409, "already_exists", f"{path} already exists.")
    return problem
