"""Fixtures of the tests of runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.runs import booted
from tests.runs.credentialed import Credentialed

collect_ignore = [] if os.geteuid() == 0 else ["test_agent_as_root.py"]


@pytest.fixture
def workspace() -> Iterator[booted.Workspace]:
    """A workspace whose agent runs as a plain process."""
    with booted.workspace() as made:
        yield made


@pytest.fixture
def credentialed(workspace: booted.Workspace) -> Credentialed:
    """The same with a place for credentials."""
    return Credentialed(workspace)
