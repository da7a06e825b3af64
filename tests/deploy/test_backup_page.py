"""What ``docs/operators/backup.md`` has an operator type, with a private PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from deploy.services.postgres import PrivatePostgres
from deploy.services.process import wait_until
from deploy.up.layout import Layout
from deploy.up.own_processes import OwnProcesses, Process
from tests.deploy.conftest import make_venv
from tests.docs.pages import ROOT, read_page
from tests.docs.shell import Shell
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

PAGE = read_page(ROOT / "docs" / "operators" / "backup.md")
# As our processes do: no database is renamed while somebody is connected to it.
WORK = """
import os, time, psycopg
connection = psycopg.connect(os.environ["DATABASE_URL"])
open("connected", "w").close()
time.sleep(3600)
"""


@pytest.fixture
def postgres(open_directory: Path) -> Iterator[PrivatePostgres]:
    """A server that runs."""
    service = PrivatePostgres(open_directory / "postgres", None, "a-password")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def processes(layout: Layout, postgres: PrivatePostgres) -> Iterator[OwnProcesses]:
    """A checkout whose only process is connected to the database."""
    (layout.checkout / "work.py").write_text(WORK)
    (layout.checkout / "manage.py").symlink_to(ROOT / "manage.py")
    make_venv(layout)
    own = OwnProcesses(layout, (Process("worker", "{bin}/python work.py", round(LONG_WAIT)),))
    own.start({"PATH": os.environ["PATH"], "DATABASE_URL": postgres.url})
    yield own
    own.stop()


def test_a_checkouts_database_is_put_back_as_the_page_says(
    layout: Layout, postgres: PrivatePostgres, processes: OwnProcesses
) -> None:
    assert wait_until((layout.checkout / "connected").exists, LONG_WAIT)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'of the backup' AS word")
    (take,) = [each.text for each in PAGE.commands if each.text.startswith("pg_dump")]
    restore = [each.text for each in PAGE.commands if each.not_run is not None]
    assert len(restore) == 7
    programs = f"{layout.venv / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": programs, "DATABASE_URL": postgres.url}
    shell = Shell(layout.checkout, environ)
    try:
        assert shell.run(take) == (0, "")
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("UPDATE kept SET word = 'of today'")
        for command in restore:
            code, printed = shell.run(command)
            assert code == 0, f"{command}\n{printed}"
    finally:
        shell.close()
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT word FROM kept").fetchall() == [("of the backup",)]
    assert (processes.states() or {}).get("worker") == "RUNNING"
