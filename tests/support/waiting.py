"""How long a test waits for what has to happen, on a machine with much else to do."""

from __future__ import annotations

import time

LONG_WAIT = 300.0
"""Seconds within which anything that has to happen has happened, but for builds.

A test that passes never waits this long. A test that fails does, so a test of something that must
*not* happen looks for a sign that its moment has passed, and does not wait.
"""

BUILD_WAIT = 600.0
"""Seconds within which images are built and published and the container runs."""


def rest(began: float, *, least: float = 0.1) -> None:
    """Sleep for twice as long as a look took that began then, at most for half a second.

    What is waited for needs the processors more than who waits.
    """
    time.sleep(max(least, min(0.5, 2 * (time.monotonic() - began))))
