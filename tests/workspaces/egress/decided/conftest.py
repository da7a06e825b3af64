"""What tests of the journal of decisions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workspaces.egress.decided.refusing import Refusing
from workspaces.egress.decided.journal import Journal


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    """A database that takes records, until a test has it refuse some."""
    return Refusing(monkeypatch)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Journal]:
    """The journal of the proxy that comes next."""
    following = Journal(tmp_path / "egress-journal")
    yield following
    following.abandon()
