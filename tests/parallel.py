"""How the tests are shared out when several processes run them: ``pytest -n 3``.

A file is a unit: its tests run in one process and in their order, so module fixtures are set up
once. Each process has a database, queues and an instance id of its own (``tests/conftest.py``), so
units may run beside each other; those that may not are one unit (:data:`TOGETHER`). What takes long
begins first, so that no process is left alone with it at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/chaos/",)
"""Folders that are one unit: they kill and restart real services, and share those of a session."""

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
"""Where units take long, the longest first; elsewhere the number of tests tells."""


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to: a folder of :data:`TOGETHER`, or its file."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


def long_first(nodeids: Iterable[str]) -> list[str]:
    """Return the units of the tests in the order in which they are to begin."""
    sizes = Counter(unit_of(nodeid) for nodeid in nodeids)

    def rank(unit: str) -> tuple[int, int]:
        places = (place for place, start in enumerate(LONG_FIRST) if unit.startswith(start))
        return next(places, len(LONG_FIRST)), -sizes[unit]

    return sorted(sizes, key=rank)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """xdist's scheduler of scopes, whose scopes are our units, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Give what a process had left to others; return the test that it died in, if it did.

        xdist would have that test run again, in one process after the other, and in the end it may
        wait for ever. It has failed; the second chance of failed tests is its own too.
        """
        left = self.assigned_work.pop(node)
        pending = (nodeid for unit in left.values() for nodeid, done in unit.items() if not done)
        died_in: str | None = next(pending, None)
        if died_in is None:
            return None
        left[unit_of(died_in)][died_in] = True
        self.workqueue.update(
            {unit: tests for unit, tests in left.items() if not all(tests.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in


def in_order(items: list[pytest.Item]) -> None:
    """Sort the tests by the order of their units, each unit's as they were."""
    order = {unit: place for place, unit in enumerate(long_first(item.nodeid for item in items))}
    items.sort(key=lambda item: order[unit_of(item.nodeid)])
