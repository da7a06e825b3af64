"""A recording of a real spool, for tests of what is observed, and the events that came of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from runs.agent.masking.masker import Masker
from runs.agent.observe.observers import Observers
from runs.agent.process.program import Account
from runs.agent.record.frames import Event, decode, frames
from runs.agent.record.recording import Recording
from runs.agent.record.spool import SpoolLimits, SpoolWriter

RUN = "11111111-2222-3333-4444-555555555555"
ACCOUNT = Account("tester", os.geteuid(), os.getegid(), tuple(os.getgroups()))


class Watching:
    """One run's recording and its observers, driven by the test instead of a supervisor."""

    def __init__(self, base: Path, root: Path, **members: Any) -> None:
        self.state = base / "state"
        runs = self.state / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        self.folder = runs / RUN
        self.writer = SpoolWriter.create(str(runs), RUN, SpoolLimits(), "one-shot")
        self.recording = Recording(self.writer, policy="drop", masker=Masker([b"a-secret-value"]))
        wanted = {"processes": False, "files": False, "network": False}
        limits = {"patch_bytes": 1 << 22, "max_files": 1000}
        self.observers = Observers(
            self.recording,
            repository=str(root),
            account=ACCOUNT,
            runs_root=str(runs),
            run_id=RUN,
            **{**wanted, **limits, **members},
        )

    def events(self, kind: int) -> list[Event]:
        """The events of one kind that are in the spool now."""
        self.writer.flush()
        found = []
        for segment in sorted(self.folder.glob("*.seg")):
            found += _events_in(segment.read_bytes())
        return [event for event in found if event.kind == kind]

    def metas(self, kind: int) -> list[dict[str, Any]]:
        """Their metas."""
        return [json.loads(event.meta) for event in self.events(kind)]

    def close(self) -> None:
        """Seal the record."""
        self.recording.seal("ended", None)


def _events_in(content: bytes) -> list[Event]:
    return [decode(frame) for frame in frames(content) if frame]


def git(root: Path, *arguments: str) -> bytes:
    """Run git in `root` as somebody with a name."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
