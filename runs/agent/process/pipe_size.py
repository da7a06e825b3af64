"""How much a pipe holds: more saves a switch between processes for every 64 KiB of a stream."""

from __future__ import annotations

import fcntl

USUAL_BYTES = 64 * 1024
_WIDE_BYTES = 256 * 1024
# `fcntl` has had a name for it only since Python 3.10.
_F_SETPIPE_SZ = 1031


def widen(fd: int) -> None:
    """Have a pipe that was seen full hold more; what is no pipe, or may not, stays as it is.

    Only then: all pipes of a user together are limited, and most never carry much.
    """
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _WIDE_BYTES)
    except OSError:
        pass
