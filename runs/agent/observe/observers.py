"""Everything that watches a run besides its I/O, behind one object.

What is not watched, or only in part, is said: in `coverage()` before the program starts, by a
`coverageChanged` event when it turns out later.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from ..process.program import Account
from ..record.frames import Confidence, Kind, Method
from ..record.recording import Recording, text_of
from ..record.repair import open_runs
from . import git
from .changes import Changes, ChangesFailed, Difference, Snapshot
from .diff import Change
from .files import GATHER_SECONDS, LiveFiles
from .network import MOST_OPEN, Network
from .network import POLL_SECONDS as NETWORK_SECONDS
from .processes import MOST_RECORDED, POLL_SECONDS, Processes

_LOOK_FOR_RUNS_SECONDS = 1.0
_REST_AFTER_SECONDS = 5.0
_COUNTED = {"added": "added", "deleted": "deleted", "renamed": "renamed"}
_FILES_DETAIL = (
    "live: no writes through memory maps, no folders that are ignored or made by tools; "
    "snapshots: no ignored files, nested repositories by their commit, files over 32 MiB by "
    "size and time; what was changed and restored is no change"
)

_TOO_QUICK = "live: files were changed quicker than could be read at the end"


class Observers:
    """Watches one run. All calls are short but `before_start` and `finish`, which have a limit.

    `rests`: look less often while nothing is recorded, as of a shell that nobody types into.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        repository: str,
        account: Account,
        processes: bool,
        files: bool,
        network: bool,
        patch_bytes: int,
        max_files: int,
        runs_root: str,
        run_id: str,
        rests: bool = False,
    ) -> None:
        self._recording = recording
        self._root = os.path.abspath(repository)
        self._runs_root = runs_root
        self._run_id = run_id
        self._wanted = {"processes": processes, "files": files, "network": network}
        # Always looked at: a stop must find what left the leader's group.
        self._processes = Processes(recording, run_id, recorded=processes)
        self._network: Optional[Network] = None
        if network and Network.unavailable() is None:
            self._network = Network(
                recording, self._processes.pids, self._processes.number_of, self._open_runs
            )
        self._changes: Optional[Changes] = None
        if files:
            state = os.path.dirname(os.path.abspath(runs_root))
            self._changes = Changes(
                self._root,
                account,
                state,
                patch_bytes=patch_bytes,
                most=max_files,
                run_id=run_id,
            )
        self._live: Optional[LiveFiles] = None
        self._said: Dict[str, str] = {}
        self._runs: List[str] = []
        self._runs_until = 0.0
        self._rests = rests
        self._events = 0
        self._idle_from = 0.0

    def coverage(self) -> Dict[str, Dict[str, Any]]:
        """The members of `recordStarted` for processes, files and network."""
        return {
            "processes": self._polled(
                "processes",
                Processes.unavailable(),
                POLL_SECONDS,
                "what begins and ends between two polls is not seen; no exit codes",
            ),
            "files": self._files_coverage(),
            "network": self._polled(
                "network",
                Network.unavailable(),
                NETWORK_SECONDS,
                "TCP with peers that are not on the loopback; what begins and ends between two "
                "polls may not be seen",
            ),
        }

    def before_start(self) -> None:
        """Take the first snapshot and begin to watch; the program must not run yet."""
        ignored = set()
        if self._changes is not None:
            try:
                self._snapshot_taken("start", self._changes.begin())
                ignored = self._changes.ignored
            except ChangesFailed as failure:
                self._changed("files", "limited", f"no snapshot before the run: {failure}")
        if self._network is not None:
            self._network.begin()
        if self._changes is not None:
            try:
                self._live = LiveFiles(self._recording, self._root, ignored, self.candidates)
            except OSError as error:
                self._changed("files", "limited", f"no live events: {error.strerror}")
        self._processes.prepare()
        if self._network is not None:
            self._network.prepare()
        self._look_at_limits()

    def leader_started(self, pid: int, number: int) -> None:
        """A process that the recorder started, and its number in the record."""
        self._processes.leader_started(pid, number)

    def fds(self) -> List[int]:
        """Descriptors to wait for."""
        return [] if self._live is None else [self._live.fd]

    def readable(self, fd: int) -> None:
        """One of them can be read."""
        if self._live is not None and fd == self._live.fd:
            self._live.readable()
            if self._live.due is not None:
                # Whoever may have changed files is looked for before they are told of.
                self._processes.look_by(self._live.due - GATHER_SECONDS / 2)

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next (monotonic seconds)."""
        due = [self._processes.due]
        due += [None if source is None else source.due for source in (self._live, self._network)]
        return min((moment for moment in due if moment is not None), default=None)

    def tick(self) -> None:
        """Do what is due."""
        if self._rests:
            self._keep_pace()
        self._processes.tick()
        if self._live is not None:
            self._live.tick()
        if self._network is not None:
            self._network.tick()
        self._look_at_limits()

    def pids(self) -> List[int]:
        """The living processes of the run that are known."""
        return self._processes.pids()

    def candidates(self) -> List[str]:
        """All runs that something could be due to; empty when it is only this one."""
        others = set(self._open_runs()) & set(self._processes.other_runs())
        others.discard(self._run_id)
        return sorted(others | {self._run_id}) if others else []

    def finish(self) -> None:
        """Look a last time, and record what the run changed; its processes have ended."""
        if self._network is not None:
            self._network.finish()
        self._processes.finish()
        live, self._live = self._live, None
        if live is not None and not live.finish():
            self._changed("files", "limited", _TOO_QUICK)
        changes, self._changes = self._changes, None
        if changes is None:
            return
        try:
            snapshot, difference = changes.end()
        except ChangesFailed as failure:
            self._changed("files", "limited", f"changes are not known: {failure}")
        else:
            self._snapshot_taken("end", snapshot)
            self._record_difference(difference)
        finally:
            changes.close()

    def _keep_pace(self) -> None:
        now = time.monotonic()
        events = self._recording.events
        if events != self._events:
            self._events = events
            self._idle_from = now + _REST_AFTER_SECONDS
        idle = now >= self._idle_from
        self._processes.pace(idle)
        if self._network is not None:
            self._network.pace(idle)

    def _polled(
        self, source: str, missing: Optional[str], seconds: float, detail: str
    ) -> Dict[str, Any]:
        if not self._wanted[source]:
            return {"state": "off", "method": "none", "reason": "not wanted"}
        if missing is not None:
            return {"state": "off", "method": "none", "reason": missing}
        if self._rests:
            detail += f"; less often while nothing is recorded for {_REST_AFTER_SECONDS:g} s"
        interval = int(seconds * 1000)
        return {"state": "on", "method": "poll", "intervalMs": interval, "detail": detail}

    def _files_coverage(self) -> Dict[str, Any]:
        if not self._wanted["files"]:
            return {"state": "off", "method": "none", "reason": "not wanted"}
        told: Dict[str, Any] = {"state": "on", "method": "inotify", "detail": _FILES_DETAIL}
        told["intervalMs"] = int(GATHER_SECONDS * 1000)
        if git.program() is None:
            told.update(state="limited", reason="no git: patches of small text files only")
        elif not _is_in_repository(self._root):
            told.update(state="limited", reason="no repository: patches of small text files only")
        return told

    def _open_runs(self) -> List[str]:
        now = time.monotonic()
        if now >= self._runs_until:
            try:
                self._runs = sorted(open_runs(self._runs_root))
            except OSError:
                self._runs = []
            self._runs_until = now + _LOOK_FOR_RUNS_SECONDS
        return self._runs

    def _look_at_limits(self) -> None:
        if self._live is not None and self._live.limit is not None:
            self._changed("files", "limited", f"live: {self._live.limit}")
        if self._processes.full:
            self._changed("processes", "limited", f"more than {MOST_RECORDED} processes")
        if self._network is not None and self._network.full:
            self._changed("network", "limited", f"more than {MOST_OPEN} connections")

    def _changed(self, source: str, state: str, reason: str) -> None:
        if self._said.get(source) == reason:
            return
        self._said[source] = reason
        self._recording.event(
            Kind.COVERAGE_CHANGED, {"source": source, "state": state, "reason": reason}
        )

    def _snapshot_taken(self, when: str, snapshot: Snapshot) -> None:
        meta: Dict[str, Any] = {"root": self._root, "when": when, "method": snapshot.method}
        if snapshot.tree is not None:
            meta["tree"] = snapshot.tree
        meta.update(files=snapshot.files, durationMs=snapshot.duration_ms)
        self._recording.event(Kind.FILE_SNAPSHOT_COMPLETED, meta, method=Method.SNAPSHOT)

    def _record_difference(self, difference: Difference) -> None:
        counts = {"added": 0, "modified": 0, "deleted": 0, "renamed": 0}
        for kind, count in difference.counts.items():
            if kind != "none":
                counts[_COUNTED.get(kind, "modified")] += count
        confidence = Confidence.UNKNOWN if self.candidates() else Confidence.INFERRED
        self._recording.event(
            Kind.FILE_DIFF_AVAILABLE,
            {"root": self._root, **counts, "truncated": difference.truncated},
            method=Method.SNAPSHOT,
            confidence=confidence,
        )
        for position, change in enumerate(difference.changes, 1):
            self._recording.event(
                Kind.FILE_DIFF_ENTRY,
                self._entry(position, change),
                method=Method.SNAPSHOT,
                confidence=confidence,
                body=self._recording.masker.mask(change.patch or b""),
            )

    def _entry(self, position: int, change: Change) -> Dict[str, Any]:
        meta: Dict[str, Any] = {"position": position, "root": self._root}
        meta["path"] = text_of(os.fsencode(change.path))
        if change.old_path is not None:
            meta["oldPath"] = text_of(os.fsencode(change.old_path))
        meta.update(change=change.kind, binary=change.binary)
        if change.added_lines is not None:
            meta.update(addedLines=change.added_lines, removedLines=change.removed_lines)
        for when, entry in (("Before", change.before), ("After", change.after)):
            if entry is not None:
                meta["size" + when] = entry.size
                meta["mode" + when] = entry.shown_mode
        meta["patchTruncated"] = change.patch is None
        return meta


def _is_in_repository(path: str) -> bool:
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above
    return True
