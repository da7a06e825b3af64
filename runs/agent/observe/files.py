"""What happens to files while a run lasts, as inotify tells it.

Notices are gathered for a moment, so that a file that is written a hundred times is one event.
Writing through a memory map is not told; the snapshots see what it left.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ..record.frames import Confidence, Kind, Method
from ..record.recording import Recording, text_of
from . import inotify
from .inotify import Notice
from .watched import MOST_WATCHES, Watched

GATHER_SECONDS = 0.2
MOST_GATHERED = 4096
# As many buffers are read before other things get their turn.
_READS = 4
_LAST_READS_SECONDS = 1.0
_TYPES = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))


class Step(NamedTuple):
    """One thing that happened to a path. `cookie`: not 0 for one half of a rename."""

    change: str
    old_path: Optional[bytes] = None
    cookie: int = 0


class LiveFiles:
    """Turns notices about the files below `root` into events. Every call is short."""

    def __init__(
        self,
        recording: Recording,
        root: str,
        ignored: Set[str],
        candidates: Callable[[], List[str]],
        most_watches: int = MOST_WATCHES,
    ) -> None:
        """Watches everything that is there; raises OSError when nothing can be watched."""
        self.due: Optional[float] = None
        self._recording = recording
        self._root = root
        self._candidates = candidates
        self._watched = Watched(root, ignored, most_watches)
        self.fd = self._watched.inotify.fd
        self._gathered: Dict[bytes, List[Step]] = {}
        self._count = 0
        self._moving: Dict[int, Tuple[bytes, bool]] = {}
        self._gone = False
        for _ in self._watched.add(b""):
            pass

    @property
    def limit(self) -> Optional[str]:
        """Why not everything is watched, if so."""
        if self._gone:
            return "the folder that was watched is gone"
        return self._watched.limit

    @property
    def watches(self) -> int:
        """How many folders are watched."""
        return len(self._watched)

    def readable(self) -> None:
        """Take the notices that wait."""
        for _ in range(_READS):
            notices = self._watched.inotify.read()
            if not notices:
                return
            for notice in notices:
                self._take(notice)

    def tick(self) -> None:
        """Give out what has been gathered for long enough."""
        if self.due is not None and time.monotonic() >= self.due:
            self.flush()

    def finish(self) -> bool:
        """Take and give out everything, and stop watching; False when it never came to an end.

        Somebody else may go on changing files, and quicker than is read.
        """
        deadline = time.monotonic() + _LAST_READS_SECONDS
        while True:
            notices = self._watched.inotify.read()
            for notice in notices:
                self._take(notice)
            if not notices or time.monotonic() >= deadline:
                break
        self.flush()
        self._watched.inotify.close()
        return not notices

    def flush(self) -> None:
        """Give out what has been gathered."""
        gathered, self._gathered, self._count, self.due = self._gathered, {}, 0, None
        moving, self._moving = self._moving, {}
        for path, is_folder in moving.values():
            # It went where nothing is watched.
            if is_folder:
                self._watched.remove(path)
        candidates = self._candidates() if gathered else []
        for path, steps in gathered.items():
            for step in steps:
                self._record(path, step, candidates)

    def _take(self, notice: Notice) -> None:
        if notice.mask & inotify.OVERFLOW:
            self._overflowed()
            return
        if notice.mask & inotify.IGNORED:
            self._gone = self._gone or self._watched.path_of(notice.watch) == b""
            self._watched.forget(notice.watch)
            return
        folder = self._watched.path_of(notice.watch)
        if folder is None or not notice.name:
            # About a folder itself: the one above it tells that too.
            return
        path = os.path.join(folder, notice.name)
        is_folder = bool(notice.mask & inotify.IS_DIR)
        if is_folder and not self._watched.wants(path):
            # Told of neither when it is made nor when it goes; a rename needs its other half.
            if notice.mask & inotify.MOVED_TO and notice.cookie in self._moving:
                self._arrived(path, is_folder, notice.cookie)
            return
        if notice.mask & inotify.CREATE:
            self._appeared(path, is_folder)
        elif notice.mask & inotify.DELETE:
            self._gather(path, Step("deleted"))
            if is_folder:
                self._watched.remove(path)
        elif notice.mask & inotify.MOVED_FROM:
            self._moving[notice.cookie] = (path, is_folder)
            self._gather(path, Step("deleted", cookie=notice.cookie))
        elif notice.mask & inotify.MOVED_TO:
            self._arrived(path, is_folder, notice.cookie)
        elif notice.mask & inotify.MODIFY:
            self._gather(path, Step("modified"))
        elif notice.mask & inotify.ATTRIB:
            self._gather(path, Step("metadataChanged"))

    def _appeared(self, path: bytes, is_folder: bool) -> None:
        self._gather(path, Step("added"))
        if is_folder and self._watched.wants(path):
            for inner, _ in self._watched.add(path):
                self._gather(inner, Step("added"))

    def _arrived(self, path: bytes, is_folder: bool, cookie: int) -> None:
        source = self._moving.pop(cookie, None)
        if source is None:
            self._appeared(path, is_folder)
            return
        old_path = source[0]
        steps = self._gathered.get(old_path, [])
        for step in steps:
            if step.cookie == cookie:
                steps.remove(step)
                self._count -= 1
                break
        if not steps:
            self._gathered.pop(old_path, None)
        if is_folder:
            self._moved_folder(old_path, path)
        self._gather(path, Step("renamed", old_path))

    def _moved_folder(self, old_path: bytes, path: bytes) -> None:
        if not self._watched.wants(path):
            self._watched.remove(old_path)
        elif self._watched.is_watched(old_path):
            self._watched.moved(old_path, path)
        else:
            for _ in self._watched.add(path):
                pass

    def _gather(self, path: bytes, step: Step) -> None:
        steps = self._gathered.setdefault(path, [])
        last = steps[-1].change if steps else ""
        if step.cookie == 0 and step.old_path is None:
            if last == step.change:
                return
            if last in ("added", "modified") and step.change in ("modified", "metadataChanged"):
                return
        steps.append(step)
        self._count += 1
        if self.due is None:
            self.due = time.monotonic() + GATHER_SECONDS
        if self._count >= MOST_GATHERED:
            self.flush()

    def _overflowed(self) -> None:
        """Notices were lost: say so, and watch what appeared meanwhile."""
        self.flush()
        self._recording.event(
            Kind.FILE_WATCH_OVERFLOW,
            {"root": self._root},
            method=Method.INOTIFY,
            confidence=Confidence.OBSERVED,
        )
        self._watched.remove_all()
        for _ in self._watched.add(b""):
            pass

    def _record(self, path: bytes, step: Step, candidates: List[str]) -> None:
        meta: Dict[str, Any] = {"change": step.change, "path": text_of(path), "root": self._root}
        if step.old_path is not None:
            meta["oldPath"] = text_of(step.old_path)
        if step.change != "deleted":
            meta.update(_facts(self._watched.place_of(path)))
        confidence = Confidence.INFERRED
        if candidates:
            confidence = Confidence.UNKNOWN
            meta["candidates"] = candidates
        self._recording.event(Kind.FILE_CHANGE, meta, method=Method.INOTIFY, confidence=confidence)


def _facts(place: bytes) -> Dict[str, Any]:
    """What a path is now; nothing when it is gone again."""
    try:
        found = os.lstat(place)
    except OSError:
        return {}
    kind = next((name for test, name in _TYPES if test(found.st_mode)), "other")
    facts: Dict[str, Any] = {"type": kind, "mode": format(found.st_mode, "o")}
    if kind == "file":
        facts["size"] = found.st_size
    return facts
