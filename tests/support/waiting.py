"""How long a test waits for what has to happen, on a machine with much else to do."""

from __future__ import annotations

LONG_WAIT = 300.0
"""Seconds within which anything that has to happen has happened, but for builds.

A test that passes never waits this long. A test that fails does, so a test of something that must
*not* happen looks for a sign that its moment has passed, and does not wait.
"""

BUILD_WAIT = 600.0
"""Seconds within which images are built and published and the container runs."""
