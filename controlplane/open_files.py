"""How many files this process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_many_open_files() -> None:
    """Allow as many open files as the system lets us; the usual 1,024 are for small programs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
