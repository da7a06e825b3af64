"""Telling other processes that there is something to look at: PostgreSQL's LISTEN and NOTIFY.

A hint and no more: it may get lost with a connection, and behind some connection poolers it never
comes. Whoever waits for something looks by itself every now and then, too.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection

from django.db import connection
from psycopg import sql

from controlplane.work.stopping import StopEvent

CHECK_SECONDS = 30.0
"""How often a listener that hears nothing asks whether its connection still lives."""


def announce(channel: str, payload: str = "") -> None:
    """Tell whoever listens to ``channel``, once the present transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


def listen(channel: str, heard: Callable[[], object], stopped: StopEvent) -> None:
    """Call ``heard`` after each announcement, and once at the beginning, until ``stopped`` is set.

    Several that come together count as one. Does nothing between them but to look, every 30 s,
    whether its connection lives. Takes this thread's connection; raises what it raises when the
    database goes away.
    """
    listen_to([channel], lambda _: heard(), stopped)


Heard = list[tuple[str, str]]
"""Channel and payload of each announcement."""


def listen_to(
    channels: Collection[str], heard: Callable[[Heard | None], object], stopped: StopEvent
) -> None:
    """As :func:`listen` to several channels, telling what came together, in order.

    At the beginning ``heard`` gets None: anything may have been announced before.
    """
    with connection.cursor() as cursor:
        for channel in channels:
            cursor.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    try:
        heard(None)  # what was announced before could not be heard
        while not stopped.is_set():
            if not _wait(stopped):
                _ask()
            with connection.wrap_database_errors:
                told = connection.connection.notifies(timeout=0)
                news = [(one.channel, one.payload) for one in told]
            if news:
                heard(news)
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
