"""A run's folder: what it may hold, how it comes to be, and whose it is."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any, Dict, NamedTuple, Tuple

from ..status_file import random_uuid
from .acks import packed
from .segments import ACKED, DONE, IDENTITY, LOCK, open_folder, read_json, sync_folder

_VERSION = 1
_MEMBERS = {"runId": str, "spoolId": str, "mode": str, "spoolBytes": int, "segmentBytes": int}
_LOOK_SECONDS = 0.01


class SpoolLimits(NamedTuple):
    """How much of a record may wait in the container, and in how large files."""

    total_bytes: int = 256 * 1024 * 1024
    segment_bytes: int = 8 * 1024 * 1024


def limits_of(identity: Dict[str, Any]) -> SpoolLimits:
    """The limits that a spool was created with."""
    return SpoolLimits(identity["spoolBytes"], identity["segmentBytes"])


def identity_of(directory: int) -> Dict[str, Any]:
    """Whose spool it is, and its limits; raises SpoolFailed when the folder does not say so."""
    identity = read_json(directory, IDENTITY)
    if not all(isinstance(identity.get(name), kind) for name, kind in _MEMBERS.items()):
        raise SpoolFailed(f"the spool is damaged: {IDENTITY} is missing or not whole")
    return identity


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


class DiskFull(SpoolFailed):
    """The spool is sound, and the disk has no room for its end."""


def folder_of(root: str, run_id: str) -> str:
    """Where a run's spool lies; raises SpoolMissing for what can be no run's id."""
    if not run_id or "/" in run_id or run_id.startswith("."):
        raise SpoolMissing(f"{run_id!r} is no run id")
    return os.path.join(root, run_id)


def new_folder(
    root: str, run_id: str, limits: SpoolLimits, mode: str
) -> Tuple[str, Dict[str, Any]]:
    """Begin a folder beside those of the runs; returns its path and whose spool it will be.

    Nothing of it is durable before `make_durable`. Raises SpoolExists and SpoolFailed.
    """
    spool_id = random_uuid()
    fresh = os.path.join(root, ".new-" + spool_id)
    identity = {
        "version": _VERSION,
        "runId": run_id,
        "spoolId": spool_id,
        "mode": mode,
        "spoolBytes": limits.total_bytes,
        "segmentBytes": limits.segment_bytes,
    }
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(root, DONE), mode=0o700, exist_ok=True)
        refuse_existing(root, run_id)
        os.mkdir(fresh, 0o700)
        directory = open_folder(fresh)
        try:
            _write_in(directory, IDENTITY, json.dumps(identity).encode("ascii"))
            # Written over later, which takes no room: a full disk must not stop what frees it.
            _write_in(directory, ACKED, packed(0))
        finally:
            os.close(directory)
    except OSError as error:
        discard(fresh)
        raise SpoolFailed(f"the spool cannot be created: {error.strerror}") from error
    return fresh, identity


def make_durable(directory: int) -> None:
    """Wait until the disk has a new folder, before others see it; raises OSError.

    At once for all that is in it, as each wait is one more for who waits for the run.
    """
    fd = os.open(IDENTITY, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
    os.fsync(directory)


def put_in_place(root: str, run_id: str, fresh: str) -> None:
    """Make a whole new folder that of the run, durably; raises SpoolExists and SpoolFailed."""
    path = folder_of(root, run_id)
    try:
        # Fails when there is one, as that is not empty: of two only one comes to be.
        os.rename(fresh, path)
        sync_folder(root)
    except OSError as error:
        discard(fresh)
        refuse_existing(root, run_id)
        raise SpoolFailed(f"the spool cannot be created: {error.strerror}") from error
    if os.path.isdir(os.path.join(root, DONE, run_id)):
        # The run came to its end between the look and the move.
        discard(path)
        raise SpoolExists(run_id, "")


def refuse_existing(root: str, run_id: str) -> None:
    """Raise SpoolExists when the run has a spool, or has had one."""
    path = folder_of(root, run_id)
    if os.path.isdir(os.path.join(root, DONE, run_id)):
        raise SpoolExists(run_id, "")
    try:
        directory = open_folder(path)
    except FileNotFoundError:
        return
    try:
        raise SpoolExists(run_id, read_json(directory, IDENTITY).get("spoolId", ""))
    finally:
        os.close(directory)


def take_lock(directory: int, *, timeout: float = 0.0) -> int:
    """Become the writer of a spool; raises SpoolBusy when another one lives."""
    fd = os.open(
        LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory
    )
    give_up = time.monotonic() + timeout
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
    """Replace a file of the folder by a whole one; the name is durable with the folder."""
    temporary = name + ".new"
    _write_in(directory, temporary, content, durably=True)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def _write_in(directory: int, name: str, content: bytes, *, durably: bool = False) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        if durably:
            os.fdatasync(fd)
    finally:
        os.close(fd)


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
