"""Ending the records of runs whose writer has died: what was written stays, and the end says so."""

from __future__ import annotations

import os
import signal
import time
from typing import List, Set

from .acks import clear_removed
from .segments import IDENTITY, SNAPSHOT_FOLDER, open_folder, read_json
from .spool import SpoolWriter
from .spool_folder import SpoolBusy, SpoolFailed, SpoolMissing, take_lock

_KILL_SECONDS = 10.0
_LOOK_SECONDS = 0.02


def run_ids(root: str) -> List[str]:
    """The runs that have a spool, in a fixed order."""
    if not os.path.isdir(root):
        return []
    return sorted(name for name in os.listdir(root) if not name.startswith("."))


def open_runs(root: str) -> List[str]:
    """The runs whose writer lives and has not sealed yet."""
    return [run_id for run_id in run_ids(root) if _is_open(os.path.join(root, run_id))]


def seal_abandoned(root: str) -> List[str]:
    """End every record whose writer is gone, and finish what a crash interrupted.

    Returns the runs that were sealed. Also records of earlier boots: the caller, a boot, holds the
    lock of its own. A damaged spool is left as it is: its reader says where the damage is.
    """
    clear_removed(root)
    for name in os.listdir(root):
        if name.startswith(".new-") and not has_writer(os.path.join(root, name)):
            _remove(os.path.join(root, name))
    sealed = []
    for run_id in run_ids(root):
        try:
            if repair(root, run_id):
                sealed.append(run_id)
        except SpoolFailed:
            continue
    _remove_snapshots(root)
    return sealed


def _remove(folder: str) -> None:
    import shutil  # costs a start more than all of this module

    shutil.rmtree(folder, ignore_errors=True)


def _remove_snapshots(root: str) -> None:
    """Remove what killed recorders kept to compare with; a recorder that lives holds its lock."""
    state = os.path.dirname(os.path.abspath(root))
    for name in os.listdir(state):
        run_id = name[len(SNAPSHOT_FOLDER) :].rpartition("-")[0]
        if name.startswith(SNAPSHOT_FOLDER) and not (
            run_id and has_writer(os.path.join(root, run_id))
        ):
            _remove(os.path.join(state, name))


def repair(root: str, run_id: str) -> bool:
    """Seal a record whose writer is gone; False when it is sealed, being written, or not there.

    What the run left behind is ended first, so that nothing unrecorded goes on. Raises SpoolFailed
    when the spool is damaged, or cannot be written, and DiskFull when that is all that is wrong.
    """
    try:
        writer = SpoolWriter.reopen(root, run_id, timeout=0)
    except (SpoolBusy, SpoolMissing):
        return False
    if writer.sealed:
        writer.close()
        return False
    end_processes(run_id)
    lost = {"code": None, "signal": None, "reason": "lost"}
    known = (writer.summary.exit if writer.mode != "boot" else None) or lost
    # A session may have had no program at all.
    ending = None if writer.mode == "interactive" and not writer.summary.leader else known
    totals = writer.summary.totals()
    writer.seal({"by": "agent", "reason": "recorder-lost", "exit": ending, **totals})
    return True


def end_processes(run_id: str) -> None:
    """Kill everything that has the run's id in its environment, and wait until it is gone."""
    give_up = time.monotonic() + _KILL_SECONDS
    while True:
        pids = living_processes(run_id)
        if not pids or time.monotonic() >= give_up:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(_LOOK_SECONDS)


def living_processes(run_id: str) -> Set[int]:
    """The processes of a run; one that has ended and waits for its parent is none."""
    mark = b"SVC_RUN_ID=" + os.fsencode(run_id)
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (1, os.getpid()):
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.add(int(entry))
        except OSError:
            continue
    return found


def has_writer(path: str) -> bool:
    """Whether somebody writes the spool in this folder."""
    try:
        directory = open_folder(path)
    except FileNotFoundError:
        return False
    try:
        os.close(take_lock(directory))
    except SpoolBusy:
        return True
    finally:
        os.close(directory)
    return False


def is_of_a_boot(directory: int) -> bool:
    """Whether the spool is PID 1's own, which goes on with it when the container starts again."""
    return read_json(directory, IDENTITY).get("mode") == "boot"


def _is_open(path: str) -> bool:
    # The writer holds the lock a moment longer than the record is open, and no more.
    return has_writer(path)
