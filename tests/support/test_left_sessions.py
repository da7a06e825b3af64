"""A test database can be dropped, whoever is still connected to it."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from django.db import connection

from tests.support.left_sessions import end_left_sessions


@pytest.mark.django_db(transaction=True)
def test_sessions_that_are_left_are_ended_and_no_other_begins() -> None:
    name = f"left_{uuid.uuid4().hex}"
    where = {
        **{key: connection.settings_dict[key.upper()] for key in ("host", "port", "user")},
        "password": connection.settings_dict["PASSWORD"],
        "dbname": name,
    }
    where = {key: value for key, value in where.items() if value}
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        left = psycopg.connect(**where)
        assert end_left_sessions(name) == 1
        with pytest.raises(psycopg.OperationalError):
            left.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
            psycopg.connect(**where)
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")
