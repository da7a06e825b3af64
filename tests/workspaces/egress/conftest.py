"""What tests of the egress proxy share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workspaces.egress.decided.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a proxy, whose passes a test ends itself."""
    journal = Journal(tmp_path / "egress-journal")
    yield journal
    journal.abandon()
