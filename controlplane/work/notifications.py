"""Telling other processes that there is something to look at: PostgreSQL's LISTEN and NOTIFY.

A hint and no more: it may get lost with a connection, and behind some connection poolers it never
comes. Whoever waits for something looks by itself every now and then, too.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from django.db import connection
from psycopg import sql

from controlplane.work.stopping import StopEvent

CHECK_SECONDS = 30.0
"""How often a listener that hears nothing asks whether its connection still lives."""


def announce(channel: str, payload: str = "") -> None:
    """Tell whoever listens to ``channel``, once the present transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


def listen(
    channel: str,
    heard: Callable[[], object],
    stopped: StopEvent,
    *,
    told: Callable[[str], object] | None = None,
) -> None:
    """Call ``heard`` after each announcement, and once at the beginning, until ``stopped`` is set.

    Several that come together count as one. With ``told``, that is given what each of them says
    instead, and ``heard`` is called at the beginning only. Does nothing between them but to look,
    every 30 s, whether its connection lives. Takes this thread's connection; raises what it raises
    when the database goes away.
    """
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    try:
        heard()  # what was announced before could not be heard
        while not stopped.is_set():
            if not _wait(stopped):
                _ask()
            with connection.wrap_database_errors:
                news = list(connection.connection.notifies(timeout=0))
            if told is not None:
                for each in news:
                    told(each.payload)
            elif news:
                heard()
    finally:
        # The connection may be used for something else next.
        connection.close()


def _wait(stopped: StopEvent) -> bool:
    """Wait until the connection has something to say or ``stopped`` is set; False: too long."""
    poll = select.poll()
    poll.register(connection.connection.fileno(), select.POLLIN)
    poll.register(stopped.fileno(), select.POLLIN)
    return bool(poll.poll(CHECK_SECONDS * 1000))


def _ask() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
