"""Who dies first where memory runs out, and whether somebody has."""

from __future__ import annotations

import os

_BY_SO_MUCH = 500
_AT_MOST = 1000
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def die_before_the_agent() -> None:
    """Have the kernel end this process, and what it starts, before the agent where memory is short.

    The agent keeps the record: without it nobody knows what has ended. Where the kernel does not
    allow that, nothing changes.
    """
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        try:
            score = int(os.read(fd, 16))
            os.pwrite(fd, b"%d" % min(score + _BY_SO_MUCH, _AT_MOST), 0)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def kills() -> int:
    """How many processes of this container the kernel has ended for want of memory.

    0 where it does not tell.
    """
    for path in _COUNTERS:
        try:
            with open(path, "rb") as file:
                for line in file:
                    name, _, count = line.partition(b" ")
                    if name == b"oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue
    return 0
