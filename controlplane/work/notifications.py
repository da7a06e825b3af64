"""Telling other processes that there is something to look at: PostgreSQL's LISTEN and NOTIFY.

A hint and no more: it may get lost with a connection, and behind some connection poolers it never
comes. Whoever waits for something looks by itself every now and then, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection
from psycopg import sql

LOOK_SECONDS = 0.25
"""How often a listener looks whether it is to end."""


def announce(channel: str) -> None:
    """Tell whoever listens to ``channel``, once the present transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [channel])


def listen(channel: str, heard: Callable[[], object], stopped: threading.Event) -> None:
    """Call ``heard`` after each announcement, and once at the beginning, until ``stopped`` is set.

    Several that come together count as one. Takes this thread's connection; raises what it raises
    when the database goes away.
    """
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    try:
        heard()  # what was announced before could not be heard
        while not stopped.is_set():
            with connection.wrap_database_errors:
                notices = connection.connection.notifies(timeout=LOOK_SECONDS, stop_after=1)
                news = any(True for _ in notices)
            if news:
                heard()
    finally:
        # The connection may be used for something else next.
        connection.close()
