"""Rows that somebody else is writing: locked by a connection of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection
from django.db.models import Model

WAIT_SECONDS = "1s"


@contextmanager
def locked(row: Model) -> Iterator[None]:
    """Hold the lock of a row; whoever waits for it here fails soon, instead of for ever."""
    other = connection.copy()
    name = connection.ops.quote_name
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                f"SELECT FROM {name(row._meta.db_table)} "
                f"WHERE {name(row._meta.pk.attname)} = %s FOR UPDATE",
                [row.pk],
            )
            assert cursor.rowcount == 1
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{WAIT_SECONDS}'")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")
    finally:
        other.rollback()  # a connection that is closed keeps its locks for a moment
        other.close()
