"""Fixtures of the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runs.agent import booted
from tests.runs.agent.credentialed import Credentialed


@pytest.fixture
def workspace() -> Iterator[booted.Workspace]:
    """A workspace whose agent runs as a plain process."""
    with booted.workspace() as made:
        yield made


@pytest.fixture
def credentialed(workspace: booted.Workspace) -> Credentialed:
    """The same with a place for credentials."""
    return Credentialed(workspace)
