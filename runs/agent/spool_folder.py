"""A run's folder: what it may hold, how it comes to be, and whose it is."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Dict, NamedTuple

from .segments import IDENTITY, LOCK, open_folder, read_json

_LOOK_SECONDS = 0.01


class SpoolLimits(NamedTuple):
    """How much of a record may wait in the container, and in how large files."""

    total_bytes: int = 256 * 1024 * 1024
    segment_bytes: int = 8 * 1024 * 1024


def limits_of(identity: Dict[str, Any]) -> SpoolLimits:
    """The limits that a spool was created with."""
    return SpoolLimits(identity["spoolBytes"], identity["segmentBytes"])


class SpoolExists(Exception):
    """The run has a spool, or has had one. `spool_id` is empty when it is gone."""

    def __init__(self, run_id: str, spool_id: str) -> None:
        super().__init__(f"the run {run_id} has been recorded before")
        self.spool_id = spool_id


class SpoolMissing(Exception):
    """The run has no spool."""


class SpoolBusy(Exception):
    """Somebody else is writing this spool."""


class SpoolFailed(Exception):
    """The spool cannot be written; the message says why."""


def folder_of(root: str, run_id: str) -> str:
    if not run_id or "/" in run_id or run_id.startswith("."):
        raise SpoolMissing(f"{run_id!r} is no run id")
    return os.path.join(root, run_id)


def refuse_existing(path: str, done: str, run_id: str) -> None:
    if os.path.isdir(done):
        raise SpoolExists(run_id, "")
    try:
        directory = open_folder(path)
    except FileNotFoundError:
        return
    try:
        raise SpoolExists(run_id, read_json(directory, IDENTITY).get("spoolId", ""))
    finally:
        os.close(directory)


def take_lock(directory: int, *, patience: float = 0.0) -> int:
    """Become the writer of a spool; raises SpoolBusy when another one lives."""
    fd = os.open(
        LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory
    )
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            # A reader that looks whether the writer lives holds the lock for a moment.
            if time.monotonic() >= give_up:
                os.close(fd)
                raise SpoolBusy("the spool has a writer") from None
        time.sleep(_LOOK_SECONDS)


def replace_in(directory: int, name: str, content: bytes) -> None:
    temporary = name + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def unlink_in(directory: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def discard(path: str) -> None:
    """Remove a spool that never came to be."""
    try:
        directory = open_folder(path)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(directory):
            unlink_in(directory, name)
    finally:
        os.close(directory)
    os.rmdir(path)
