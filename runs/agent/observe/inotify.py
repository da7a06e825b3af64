"""inotify(7) through ctypes: which the standard library has no other way to."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import List, NamedTuple

MODIFY = 0x2
ATTRIB = 0x4
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
EXCL_UNLINK = 0x4000000
IS_DIR = 0x40000000

_EVENT = struct.Struct("iIII")
_READ_BYTES = 65536


class Notice(NamedTuple):
    """One event. `watch` is -1 for an overflow; `name` is empty when the folder itself is meant."""

    watch: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """One inotify instance. `fd` is readable when there are notices."""

    def __init__(self) -> None:
        """Raises OSError when there may be no more instances."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise _error()

    def watch(self, folder: int, mask: int) -> int:
        """Watch an open folder; its watch's number. Raises OSError, ENOSPC when there are no more
        watches to be had."""
        path = b"/proc/self/fd/%d" % folder
        number = int(self._libc.inotify_add_watch(self.fd, path, ctypes.c_uint32(mask)))
        if number < 0:
            raise _error()
        return number

    def unwatch(self, number: int) -> None:
        """End a watch; nothing happens when it is gone already."""
        self._libc.inotify_rm_watch(self.fd, number)

    def read(self) -> List[Notice]:
        """The notices that wait, at most a buffer full."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        notices = []
        start = 0
        while start < len(data):
            watch, mask, cookie, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size
            name = data[start : start + length].rstrip(b"\0")
            notices.append(Notice(watch, mask, cookie, name))
            start += length
        return notices

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
