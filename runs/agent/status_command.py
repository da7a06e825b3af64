"""`agent status`: print the status, optionally after waiting for the boot to end.

Exit codes: 0 ready, 1 failed or stopped, 3 still booting.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Dict, Optional, Tuple

from .status_file import FILE_NAME, FINAL_PHASES, VERSION, start_ticks

EXIT_READY = 0
EXIT_ENDED = 1
EXIT_BOOTING = 3

# A boot that waits for its credentials, or to be bound, waits for whoever asks here. For a moment
# it may only not have noticed that they have come.
_STUCK_SECONDS = {"credentials": 0.5, "unbound": 0.0}

# A look costs one stat() until the file changes. Most boots are over soon, and somebody waits.
_FIRST_LOOK_SECONDS = 0.003
_FIRST_SECONDS = 0.5
_LOOK_SECONDS = 0.05


def show(state_directory: str, wait_seconds: float, *, passing: Tuple[str, ...] = ()) -> int:
    """Print the status as JSON once the boot has ended, is stuck, or the time is over.

    It is stuck while it waits for somebody, unless that is one of the phases it is `passing`.
    """
    # A boot that fails terminates every process of the container at once. This one ends by itself
    # within one look, and has the answer that its caller is waiting for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    began = time.monotonic()
    deadline = began + wait_seconds
    path = os.path.join(state_directory, FILE_NAME)
    seen: Optional[Tuple[int, int]] = None
    seen_at = 0.0
    status = _not_started()
    while True:
        version = _version_of(path)
        if version is not None and version != seen:
            seen, seen_at = version, time.monotonic()
            status = _current(path)
        now = time.monotonic()
        left = deadline - now
        if status["phase"] in FINAL_PHASES or left <= 0:
            break
        stuck = _STUCK_SECONDS.get(status["phase"])
        if stuck is not None and status["phase"] not in passing and now - seen_at >= stuck:
            break
        look = _FIRST_LOOK_SECONDS if now < began + _FIRST_SECONDS else _LOOK_SECONDS
        time.sleep(min(look, left))

    sys.stdout.write(json.dumps(status) + "\n")
    if status["phase"] == "ready":
        return EXIT_READY
    return EXIT_ENDED if status["phase"] in FINAL_PHASES else EXIT_BOOTING


def _version_of(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _current(path: str) -> Dict[str, Any]:
    with open(path, "rb") as file:
        content = file.read()
    if not content:
        # The machine has crashed before the disk had it: this is a restarted container.
        return _not_started()
    status: Dict[str, Any] = json.loads(content)
    writer = status.get("process") or {}
    # In a restarted container the last boot's file is there until the new PID 1 has replaced it.
    if writer.get("pid") == 1:
        written_by, running = writer.get("startTicks"), start_ticks(1)
        if written_by and running and written_by != running:
            return _not_started()
    return status


def _not_started() -> Dict[str, Any]:
    return {
        "version": VERSION,
        "runId": None,
        "bootId": None,
        "phase": "starting",
        "since": None,
        "step": None,
        "message": "the agent has not written its status yet",
        "tail": "",
        "process": None,
    }
