"""Watches of folders: a program in the sandbox that the kernel tells what changes, as a run.

It is recorded like everything that is executed, and nothing is asked again and again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from controlplane_client import AsyncRun, AsyncWorkspace, ControlPlaneError
from e2bfacade.refused import Refused, refusal_of

WATCHER = "e2b-watch"
"""An argument by which the program is known among others."""
MAX_EVENTS, MAX_EVENT_BYTES = 10_000, 4 * 1024 * 1024
"""So much waits of one watch until it is fetched."""
MAX_LINE_BYTES = 64 * 1024
"""A line of the program; a path has 4096 bytes, each of which JSON writes as six at the most."""
MAX_WATCHES = 1_000
IDLE_SECONDS = 900.0
"""A watch for whose events nobody has asked for so long is ended."""

_PROGRAM = r"""
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
top, recursive = sys.argv[2], sys.argv[3] == "1"
fd = libc.inotify_init1(0o2000000)
CREATE, DELETE, MODIFY, FROM, TO, ATTRIB = 0x100, 0x200, 0x2, 0x40, 0x80, 0x4
ISDIR, IGNORED, OVERFLOW = 0x40000000, 0x8000, 0x4000
KINDS = ((CREATE, "CREATE"), (TO, "CREATE"), (MODIFY, "WRITE"), (DELETE, "REMOVE"),
         (FROM, "RENAME"), (ATTRIB, "CHMOD"))
folders, stored = {}, 0
def tell(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
def watch(folder):
    number = libc.inotify_add_watch(fd, os.fsencode(os.path.join(top, folder)),
                                    CREATE | DELETE | MODIFY | FROM | TO | ATTRIB | 0x01000000)
    if number >= 0:
        folders[number] = folder
    return number
def tree(folder):
    with os.scandir(os.path.join(top, folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".svc-upload-"):
                inner = os.path.join(folder, entry.name)
                if watch(inner) >= 0:
                    tree(inner)
if not os.path.isdir(top):
    tell(error="no-folder"); sys.exit(1)
if watch("") < 0:
    tell(error=os.strerror(ctypes.get_errno())); sys.exit(1)
if recursive:
    tree("")
tell(ready=True)
while folders:
    data, at = os.read(fd, 65536), 0
    while at < len(data):
        number, mask, cookie, size = struct.unpack_from("iIII", data, at)
        name = os.fsdecode(data[at + 16:at + 16 + size].rstrip(b"\0"))
        at += 16 + size
        if mask & OVERFLOW:
            tell(error="more changed at once than the kernel remembers"); sys.exit(1)
        if mask & IGNORED:
            folders.pop(number, None)
            continue
        if number not in folders or not name:
            continue
        path = os.path.join(folders[number], name)
        if name.startswith(".svc-upload-"):  # a file of the API before it has its name
            stored = cookie if mask & FROM else stored
            continue
        if name[0] == "#" and name[1:].isdigit() and mask & (MODIFY | ATTRIB):
            if not os.path.lexists(os.path.join(top, path)):  # one without any name
                continue
        for bit, kind in KINDS:
            if mask & bit:
                tell(name=path, type="EVENT_TYPE_" + kind)
        if mask & TO and cookie == stored:
            tell(name=path, type="EVENT_TYPE_WRITE")
        if recursive and mask & ISDIR and mask & (CREATE | TO) and watch(path) >= 0:
            try:
                tree(path)
            except OSError:
                pass
"""


class Watch:
    """One watch whose events wait until they are fetched."""

    def __init__(self, owner: str, workspace_id: str, run: AsyncRun) -> None:
        self.owner, self.workspace_id, self.run = owner, workspace_id, run
        self.events: deque[dict[str, Any]] = deque()
        self.waiting_bytes = 0
        self.ended: Refused | None = None
        self.asked_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None


class Watches:
    """All watches that this facade has begun; those of another it does not know."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    async def aclose(self) -> None:
        """End all of them."""
        for watch in list(self._watches.values()):
            await self._end(watch)

    async def follow(
        self, workspace: AsyncWorkspace, path: str, recursive: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Give a watch's start and each event as E2B tells them; leaving it ends the watch."""
        run = await self._begin(workspace, path, recursive)
        try:
            async with aclosing(_lines(run)) as lines:
                async for line in lines:
                    yield {"start": {}} if line.get("ready") else {"filesystem": line}
            raise Refused(404, "not_found", f"{path} no longer exists.")
        finally:
            await asyncio.shield(_stop(run))

    async def create(self, workspace: AsyncWorkspace, path: str, recursive: bool) -> str:
        """Begin a watch, and return its id once changes are seen. Raises ``Refused``."""
        for each in [each for each in self._watches.values() if _is_idle(each)]:
            await self._end(each)
        if len(self._watches) >= MAX_WATCHES:
            raise Refused(429, "resource_exhausted", "There are too many watches.")
        run = await self._begin(workspace, path, recursive)
        watch = Watch(workspace._connection.owner, workspace.id, run)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch.task = asyncio.ensure_future(_collect(watch, path, ready))
        try:
            await ready
        except BaseException:
            watch.task.cancel()
            await asyncio.shield(_stop(run))
            raise
        self._watches[run.id] = watch
        return run.id

    def events(self, workspace: AsyncWorkspace, watcher_id: str) -> list[dict[str, Any]]:
        """Return what has changed since this was asked last. Raises ``Refused``."""
        watch = self._found(workspace, watcher_id)
        watch.asked_at = time.monotonic()
        found = list(watch.events)
        watch.events.clear()
        watch.waiting_bytes = 0
        if not found and watch.ended is not None:
            raise watch.ended
        return found

    async def remove(self, workspace: AsyncWorkspace, watcher_id: str) -> None:
        """End a watch. Raises ``Refused`` when there is no such."""
        await self._end(self._found(workspace, watcher_id))

    async def _begin(self, workspace: AsyncWorkspace, path: str, recursive: bool) -> AsyncRun:
        command = ["python3", "-u", "-c", _PROGRAM, WATCHER, path, "1" if recursive else "0"]
        return await workspace.spawn(command)

    def _found(self, workspace: AsyncWorkspace, watcher_id: str) -> Watch:
        watch = self._watches.get(watcher_id)
        whose = (workspace._connection.owner, workspace.id)
        if watch is None or (watch.owner, watch.workspace_id) != whose:
            raise Refused(404, "not_found", "There is no such watch; start it again.")
        return watch

    async def _end(self, watch: Watch) -> None:
        self._watches.pop(watch.run.id, None)
        if watch.task is not None:
            watch.task.cancel()
        await _stop(watch.run)


async def _collect(watch: Watch, path: str, ready: asyncio.Future[None]) -> None:
    """Keep what changes until it is fetched, and settle ``ready``, whatever comes."""
    try:
        async with aclosing(_lines(watch.run)) as lines:
            async for line in lines:
                if line.get("ready"):
                    if not ready.done():
                        ready.set_result(None)
                    continue
                watch.events.append(line)
                watch.waiting_bytes += len(json.dumps(line))
                if len(watch.events) > MAX_EVENTS or watch.waiting_bytes > MAX_EVENT_BYTES:
                    raise Refused(429, "resource_exhausted", "Nobody has fetched the events.")
        raise Refused(404, "not_found", f"{path} no longer exists.")
    except Exception as error:
        watch.ended = error if isinstance(error, Refused) else _strange()
        if not ready.done():
            ready.set_exception(watch.ended)
        # Nobody hears what it would tell from now on.
        await _stop(watch.run)
    finally:
        ready.cancel()


async def _lines(run: AsyncRun) -> AsyncGenerator[dict[str, Any], None]:
    """Give what the program tells, line by line. Raises ``Refused`` for what goes wrong in it."""
    rest = b""
    try:
        async with aclosing(run.follow()) as events:
            async for event in events:
                if event.stream != "stdout":
                    continue
                *lines, rest = (rest + event.content).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise _strange()
                for line in lines:
                    told = _line(line)
                    if told.get("error") == "no-folder":
                        raise Refused(404, "not_found", "There is no such folder to watch.")
                    if "error" in told:
                        why = str(told["error"])[:200]
                        raise Refused(500, "internal", f"It cannot be watched: {why}.")
                    yield told
    except ControlPlaneError as error:
        raise refusal_of(error) from error


def _line(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise _strange()
    return told


def _strange() -> Refused:
    return Refused(
        500,
        "internal",
        "It cannot be watched: the sandbox's python3 sent something else than events.",
    )


async def _stop(run: AsyncRun) -> None:
    with suppress(ControlPlaneError):
        await run.cancel()


def _is_idle(watch: Watch) -> bool:
    return time.monotonic() - watch.asked_at > IDLE_SECONDS
