"""What this thread's connection sends to PostgreSQL, as the server would log it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

_SENT = re.compile(rb"\tF\t\d+\t(?:Query|Parse)\t (.*?)(?=\n\d{4}-\d\d-\d\d |\Z)", re.DOTALL)


@contextmanager
def sent_statements() -> Iterator[list[str]]:
    """Collect every statement of the block, ``BEGIN``, ``COMMIT`` and ``COPY`` among them.

    The list is filled when the block ends. The client library itself traces what goes over the
    wire, so that nothing is missed that does not go through Django. Fails when the connection was
    replaced meanwhile: what the new one sends is not traced.
    """
    connection.ensure_connection()
    with connection.cursor():
        pass  # its health is looked at, which is sent too, once after a pause
    traced = connection.connection
    statements: list[str] = []
    with tempfile.TemporaryFile() as trace:
        traced.pgconn.trace(trace.fileno())
        try:
            yield statements
        finally:
            traced.pgconn.untrace()
        assert connection.connection is traced
        trace.seek(0)
        statements += [found[1].decode() for found in _SENT.finditer(trace.read())]
