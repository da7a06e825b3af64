"""Tails that rest: PID 1 waits for all of them, so that none is a process that only waits.

A tail without news for long gives its connection to PID 1, and ends (`offer`). PID 1 sends the
keepalives, and starts a process for it again once there may be anything else to do: the folder was
written to, its reader has said something or is gone, or the record has no writer any more.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import time
from typing import Dict, List, NamedTuple, Optional

from .frames import PREFIX
from .repair import has_writer
from .segments import list_segments, open_folder, size_of

SOCKET_NAME = "agent.sock"
"""Where PID 1 listens, in the folder of its state."""
KEEPALIVE = bytes(PREFIX.size)
KEEPALIVE_SECONDS = 5.0
MOST_DESCRIPTORS = 4096
"""So many PID 1 has at most. Its children close them, and to close a million takes long."""

# Each has four descriptors in PID 1, which has few others.
_SHARE_OF_DESCRIPTORS = 8


class Rest(NamedTuple):
    """Where a tail has stopped: everything before `sequence` was sent."""

    run_id: str
    sequence: int
    segment: str
    offset: int
    is_boot: bool
    """Whether the record is PID 1's own, which has a writer for as long as anything has."""


def offer(root: str, rest: Rest) -> bool:
    """Give our standard streams to PID 1; unless it takes them, they are still ours."""
    given = array.array("i", [0, 2])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(os.path.join(os.path.dirname(root), SOCKET_NAME))
            line = json.dumps({"rest": rest}).encode() + b"\n"
            connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
            return connection.recv(1) == b"+"
        except OSError:
            return False


def tell_of_a_write(folder: int) -> None:
    """Have the next write to the files of an open folder send SIGIO (fcntl(2), F_NOTIFY).

    Raises OSError where the kernel has no such thing, gVisor say.
    """
    fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_MODIFY | fcntl.DN_CREATE)


class RestingTail:
    """One of them. `connection` and `errors` are the standard streams of its next process."""

    def __init__(self, root: str, rest: Rest, connection: int, errors: int) -> None:
        """Raises OSError; the descriptors stay the caller's then."""
        self.rest = rest
        self.errors = errors
        self._path = os.path.join(root, rest.run_id)
        self.connection = socket.socket(fileno=connection)
        try:
            self._folder = open_folder(self._path)
        except OSError:
            self.connection.detach()
            raise

    def has_news(self) -> bool:
        """Whether anything was written behind what was sent; from here on the next write tells."""
        try:
            tell_of_a_write(self._folder)
            # Not over the same descriptor: to list it closes a duplicate, which ends the watch.
            directory = open_folder(self._path)
            try:
                segments = list_segments(directory)
                last = segments[-1].name if segments else ""
                return (last, size_of(directory, last)) != (self.rest.segment, self.rest.offset)
            finally:
                os.close(directory)
        except OSError:
            return True

    def is_abandoned(self) -> bool:
        """Whether nobody writes the record any more."""
        try:
            return not self.rest.is_boot and not has_writer(self._path)
        except OSError:
            return True

    def speak(self) -> None:
        """Tell the reader that the record is still followed."""
        try:
            self.connection.send(KEEPALIVE, socket.MSG_DONTWAIT)
        except OSError:
            pass  # it has more to read than it takes, or is gone, which wakes the loop

    def close(self) -> None:
        """Its process has the descriptors now."""
        self.connection.close()
        os.close(self.errors)
        os.close(self._folder)


class RestingTails:
    """All of them, for the loop of PID 1. They are known by the number of their connection."""

    def __init__(self) -> None:
        self._tails: Dict[int, RestingTail] = {}
        self._most = min(os.sysconf("SC_OPEN_MAX"), MOST_DESCRIPTORS) // _SHARE_OF_DESCRIPTORS
        self._written = False
        self._speaks_at = 0.0
        signal.signal(signal.SIGIO, self._note)

    def _note(self, *_: object) -> None:
        self._written = True

    @property
    def has_room(self) -> bool:
        """Whether one more may rest."""
        return len(self._tails) < self._most

    def add(self, tail: RestingTail) -> int:
        """Wait for it from now on."""
        if not self._tails:
            self._speaks_at = time.monotonic() + KEEPALIVE_SECONDS
        number = tail.connection.fileno()
        self._tails[number] = tail
        self._written = True  # perhaps, before the kernel was asked to tell
        return number

    def remove(self, number: int) -> RestingTail:
        """It rests no longer."""
        return self._tails.pop(number)

    def fds(self) -> List[int]:
        """What to wait for; who is readable has to go on."""
        return list(self._tails)

    def deadline(self) -> Optional[float]:
        """When to look for those that have to go on, if nothing happens before."""
        if not self._tails:
            return None
        return 0.0 if self._written else self._speaks_at

    def awake(self) -> List[int]:
        """Those that have to go on."""
        found = set()
        if self._written:
            self._written = False
            found = {number for number, tail in self._tails.items() if tail.has_news()}
        if time.monotonic() >= self._speaks_at:
            self._speaks_at = time.monotonic() + KEEPALIVE_SECONDS
            for number, tail in self._tails.items():
                tail.speak()
                if tail.is_abandoned():
                    found.add(number)
        return list(found)
