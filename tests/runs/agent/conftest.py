"""Tests that need another account run where there may be one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stack import disks

collect_ignore = [] if os.geteuid() == 0 else ["test_as_root.py"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    with ExitStack() as mounted:
        try:
            disk = mounted.enter_context(disks.small_disk(tmp_path / "disk", "3m"))
        except subprocess.CalledProcessError:
            pytest.skip("no disk can be mounted here")
        yield disk
