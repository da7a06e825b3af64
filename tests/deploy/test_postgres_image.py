"""The entry point of our own image of PostgreSQL, as root of the image starts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deploy.services.postgres import find_binaries
from tests.deploy.installation import CHECKOUT
from tests.support.waiting import LONG_WAIT

ENTRYPOINT = CHECKOUT / "deploy" / "images" / "postgres" / "entrypoint.sh"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes the server's account"),
]


def _start(data: Path) -> subprocess.CompletedProcess[str]:
    """Start it up to where it would become the server."""
    programs = find_binaries()
    assert programs is not None
    return subprocess.run(
        ["sh", ENTRYPOINT, "true"],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PGDATA": str(data),
            "POSTGRES_USER": "svc",
            "POSTGRES_PASSWORD": "a password",
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )


def test_a_first_start_that_was_killed_while_it_moved_files_is_made_anew(
    open_directory: Path,
) -> None:
    data = open_directory / "data"
    made = data / "base" / "of-the-killed-one"
    made.mkdir(parents=True)
    (data / "making" / "global").mkdir(parents=True)
    done = _start(data)
    assert done.returncode == 0, done.stderr
    assert (data / "PG_VERSION").read_text().strip().isdigit()
    assert (data / "global" / "pg_control").exists()
    assert not made.exists()
    assert not (data / "making").exists()
    # A later one, even if the first was killed at its very end, keeps all.
    (data / "making").mkdir()
    made.mkdir()
    assert _start(data).returncode == 0
    assert made.exists()
    assert not (data / "making").exists()


def test_data_that_no_first_start_has_left_is_never_removed(open_directory: Path) -> None:
    somebodys = open_directory / "data" / "base" / "somebodys"
    somebodys.mkdir(parents=True)
    for _ in range(2):
        done = _start(open_directory / "data")
        assert done.returncode == 1
        assert "it is left as it is" in done.stderr
    assert [path.name for path in (open_directory / "data").iterdir()] == ["base"]
    assert somebodys.exists()
