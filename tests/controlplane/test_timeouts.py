"""What a log says of a database that is away, and what it never says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import DataError, OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper

from controlplane.database.retries import database_trouble
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.django_db
def test_a_connection_that_fails_says_why_and_shows_no_password() -> None:
    elsewhere = DatabaseWrapper(
        {**connection.settings_dict, "HOST": "127.0.0.1", "PORT": "1", "PASSWORD": "hunter2"}
    )
    with pytest.raises(OperationalError) as caught:
        elsewhere.ensure_connection()
    told = database_trouble(caught.value)
    assert told.startswith("OperationalError: connection ")
    assert "Connection refused" in told
    assert "hunter2" not in told
    assert "\n" not in told


@pytest.mark.django_db
def test_a_statement_that_fails_does_not_repeat_its_values() -> None:
    with pytest.raises(DataError) as caught, connection.cursor() as cursor:
        cursor.execute("select %s::integer", ["connection hunter2"])
    assert database_trouble(caught.value) == "DataError: InvalidTextRepresentation"


@pytest.mark.django_db
def test_a_database_without_room_on_its_disk_says_so() -> None:
    refused = "do $$ begin raise 'hunter2' using errcode = 'disk_full'; end $$"
    with pytest.raises(OperationalError) as caught, connection.cursor() as cursor:
        cursor.execute(refused)
    assert database_trouble(caught.value) == "OperationalError: DiskFull"


def test_the_line_of_a_worker_that_cannot_write_its_sign_of_life_says_why() -> None:
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "runworker"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "postgres://svc:hunter2@127.0.0.1:1/svc"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    try:
        line = next(line for line in worker.stderr if "heartbeat_failed" in line)
    finally:
        worker.kill()
        worker.wait(LONG_WAIT)
        worker.stderr.close()
    assert "Connection refused" in line
    assert "hunter2" not in line
