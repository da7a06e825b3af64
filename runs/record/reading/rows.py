"""SQL against the log, with parameters and results in the driver's binary form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection, transaction
from psycopg import Cursor

Row = tuple[Any, ...]


def fetch(sql: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return all rows of a query; raises Django's database errors.

    Django's own cursors have no binary form, which spares ``bytea`` a text twice as long. Nothing
    is prepared: a plan for any run would be one of all partitions of the log.
    """
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        return Cursor(_connection()).execute(sql, parameters, binary=True, prepare=False).fetchall()


def fetch_in_order(sql: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return all rows of a query that is to follow an index, whatever the statistics say.

    Of a partition that was never analyzed PostgreSQL thinks that it is small, and may gather and
    sort all of a run for every page of it.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off")
        return fetch(sql, parameters)


def _connection() -> Any:
    return connection.connection
