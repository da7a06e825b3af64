"""What the tests of the set-up share: a checkout, and the programs of its virtual environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy.services.engine import api_version
from deploy.services.registry import open_to_all
from deploy.up.layout import Layout
from tests.support.waiting import LONG_WAIT


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers is not taken for silent because a busy machine keeps it for two seconds."""
    for looks in (api_version, open_to_all):
        monkeypatch.setattr(looks, "__defaults__", (LONG_WAIT,))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A checkout with nothing in it but the locks."""
    (tmp_path / "deploy").mkdir()
    for name in ("requirements.txt", "requirements-dev.txt"):
        (tmp_path / "deploy" / name).write_text("django==5.2\n")
    made = Layout(tmp_path, tmp_path / ".data", tmp_path / ".data" / "services")
    made.create()
    return made


def make_venv(layout: Layout) -> None:
    """Have the checkout use the suite's own Python and supervisor."""
    folder = layout.venv / "bin"
    folder.mkdir(parents=True)
    # No link: Python finds its packages by where it was started.
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    (folder / "supervisorctl").symlink_to(Path(sys.executable).parent / "supervisorctl")
