"""The status file: how far this boot has come, readable also when the container has stopped.

`StatusFile` writes it atomically (temporary file, rename), so a reader sees the old or the new
status and never half of one. How a boot ended is also durable (fsync of file and folder). What it
passes through on the way, `ready` too, is not waited for: after a crash of the machine another PID
1 writes anew, and until then an empty file counts as none. It holds no secrets and everybody may
read it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, NamedTuple, Optional

VERSION = 1
FILE_NAME = "status.json"
FINAL_PHASES = ("ready", "failed", "stopped")
_ENDED_PHASES = ("failed", "stopped")


class StepStatus(NamedTuple):
    """The step that runs now or that ended the boot."""

    name: str
    kind: str
    position: int
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    timed_out: bool = False

    def to_wire(self) -> Dict[str, Any]:
        """The step as the contract spells it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "index": self.position,
            "exitCode": self.exit_code,
            "signal": self.signal,
            "timedOut": self.timed_out,
        }


class StatusFile:
    """The only writer of the status of one boot."""

    def __init__(self, state_directory: str) -> None:
        self._directory = state_directory
        self.boot_id = random_uuid()
        self._process = {"pid": os.getpid(), "startTicks": start_ticks(os.getpid())}
        self.run_id: Optional[str] = None

    def write(
        self, phase: str, *, step: Optional[StepStatus] = None, message: str = "", tail: str = ""
    ) -> None:
        """Replace the status, durably when the boot has ended.

        Raises OSError when the state folder cannot be written.
        """
        status = {
            "version": VERSION,
            "runId": self.run_id,
            "bootId": self.boot_id,
            "phase": phase,
            "since": utc_now(),
            "step": step.to_wire() if step else None,
            "message": message,
            "tail": tail,
            "process": self._process,
        }
        content = json.dumps(status).encode("ascii")
        replace_file(self._directory, FILE_NAME, content, durable=phase in _ENDED_PHASES)


def replace_file(directory: str, name: str, content: bytes, *, durable: bool = True) -> None:
    """Replace a file of the state folder; readers find the old or the new content.

    So does who comes after a crash of the machine, when it is `durable`; otherwise they may find
    an empty file, and nobody waited for the disk.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = name + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o644, dir_fd=folder)
        try:
            os.fchmod(descriptor, 0o644)
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        if durable:
            os.fsync(folder)
    finally:
        os.close(folder)


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since the machine's boot; 0 when it cannot be known.

    Together with the process id this tells one life of PID 1 from the next in the same container.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program (field 2) may hold spaces and brackets; field 22 counts from
            # its end.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def utc_now() -> str:
    """The time as ISO 8601 with milliseconds."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


def random_uuid() -> str:
    """A version 4 UUID (the `uuid` module would cost more to import than the rest of this one)."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
