"""Sessions of a test database that nobody has ended."""

from __future__ import annotations

from django.db import connection

_END_SECONDS = 60


def end_left_sessions(database: str) -> int:
    """End whatever is connected to a database, and let nobody in; return how many that were.

    A thread or a process that a test could not end would keep the database from being dropped, and
    the whole run would have failed because of it.
    """
    connection.close()
    with connection._nodb_cursor() as cursor:
        name = connection.ops.quote_name(database)
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid, %s)) FROM pg_stat_activity WHERE datname = %s",
            [_END_SECONDS * 1000, database],
        )
        return int(cursor.fetchone()[0])
