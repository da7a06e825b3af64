"""What becomes of the database when a backup is put back, with the installation's own server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.installation import Installation, made_installation
from tests.support.waiting import BUILD_WAIT
from tests.workspaces.conftest import BASE_IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1800)]
NAMES = "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datname ~ '^svc'"


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """One of which nothing runs but the database; no public registry is asked for an image."""
    made = made_installation(tmp_path, SVC_BASE_IMAGE=BASE_IMAGE)
    with made.env.open("a") as env:
        env.write(f"\nSVC_POSTGRES_IMAGE={made.settings['SVC_INSTANCE_ID']}/postgres:15-bookworm\n")
    try:
        image = 'build_service_image postgres "$(setting SVC_POSTGRES_IMAGE)"'
        for function in ("settle", image, "start_postgres"):
            done = made.call(f"find_docker; find_compose; {function}", seconds=1.5 * BUILD_WAIT)
            assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.run("uninstall", "--yes", seconds=300)


def _asked(installation: Installation, question: str) -> str:
    psql = ("psql", "-U", "svc", "-qAt", "-c", question)
    done = installation.run("compose", "exec", "-T", "postgres", *psql)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_half_a_backup_changes_nothing_and_the_whole_one_replaces_the_database(
    installation: Installation, tmp_path: Path
) -> None:
    values = "SELECT n, repeat(md5(n::text), 20) AS text FROM generate_series(1, 20000) n"
    _asked(installation, f"CREATE TABLE kept AS {values}; CREATE TABLE last AS SELECT 1")
    done = installation.call(
        "find_docker; find_compose; in_postgres pg_dump -U svc -Fc svc > $home/whole.dump"
    )
    assert done.returncode == 0, done.stderr
    whole = (installation.home / "whole.dump").read_bytes()
    half = installation.home / "half.dump"
    half.write_bytes(whole[: len(whole) // 2])
    _asked(installation, "DELETE FROM kept")

    restore = "find_docker; find_compose; restore_database $home/{} && echo restored || echo failed"
    done = installation.call(restore.format("half.dump"))
    assert done.stdout.strip() == "failed", done.stderr
    assert _asked(installation, NAMES) == "svc"
    assert _asked(installation, "SELECT count(*) FROM kept") == "0"

    done = installation.call(restore.format("whole.dump"))
    assert done.stdout.strip() == "restored", done.stderr
    assert _asked(installation, NAMES) == "svc svc_before"
    assert _asked(installation, "SELECT count(*) FROM kept") == "20000"
