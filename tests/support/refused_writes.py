"""A database that refuses some writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def refused_writes(table: str, when: str = "NEW.status = 'failed'") -> Iterator[None]:
    """Let the database refuse every update of ``table`` that fits ``when``."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused by a trigger'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW "
            f"WHEN ({when}) EXECUTE FUNCTION refuse_{table}()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TRIGGER refuse ON {table}")
            cursor.execute(f"DROP FUNCTION refuse_{table}()")
