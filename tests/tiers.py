"""Which tests ``make test`` runs, and how several processes share them.

``make test`` leaves out what has the marker ``full``: tests that kill real services, install the
product, drive a browser or take long. ``make test-full`` runs everything.

A file is a group: its tests run in one process and in their order, so module fixtures are set up
once. Each process has a database, queues and an instance id of its own (``tests/conftest.py``), so
groups may run beside each other; what takes long begins first, so that no process is left alone
with it at the end.
"""

from __future__ import annotations

from collections import Counter

import pytest

TOGETHER = ("tests/chaos/",)
"""Folders that are one group: they kill and restart real services, and share those of a session."""

FULL = (
    "tests/chaos/",
    "tests/deploy/test_compose.py",
    "tests/deploy/test_install.py",
)
"""Folders and files that are for ``make test-full`` as a whole."""

LONG_FIRST = (
    "tests/chaos/",
    "tests/deploy/test_compose.py",
    "tests/e2e/",
    "tests/gateway/",
    "tests/docs/",
    "tests/workspaces/test_docker_",
    "tests/builds/",
    "tests/runs/test_agent_",
    "tests/deploy/",
)
"""Where groups take long, the longest first; elsewhere the number of tests tells."""


def group_of(nodeid: str) -> str:
    """Return the group that a test belongs to: a folder of :data:`TOGETHER`, or its file."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


def mark(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and with ``full`` where only the full run has it."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item.nodeid)))
        if item.nodeid.startswith(FULL) or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.full)


def sort(items: list[pytest.Item]) -> None:
    """Sort the tests by group, the longest first; each group's stay as they were."""
    sizes = Counter(group_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        group = group_of(item.nodeid)
        places = (place for place, start in enumerate(LONG_FIRST) if group.startswith(start))
        return next(places, len(LONG_FIRST)), -sizes[group], group

    items.sort(key=rank)
