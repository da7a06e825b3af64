"""A worker whose folder cannot be written takes no job: it says so, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.disks import read_only
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.docker
@pytest.mark.parametrize("there", [False, True])
def test_a_data_folder_that_may_only_be_read_is_told_in_one_line(
    tmp_path: Path, there: bool
) -> None:
    folder = tmp_path / "data" / "builds"
    (folder if there else folder.parent).mkdir(parents=True)
    with read_only(tmp_path):
        done = subprocess.run(
            [sys.executable, "manage.py", "buildworker"],
            cwd=ROOT,
            env={**os.environ, "SVC_DATA_DIR": str(folder.parent)},
            capture_output=True,
            text=True,
            timeout=LONG_WAIT,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        f"CommandError: The folder {folder} cannot be written: Read-only file system."
        " SVC_DATA_DIR sets its location."
    )
    assert "Traceback" not in done.stderr
