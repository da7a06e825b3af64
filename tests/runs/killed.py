"""Work that ends at one of its statements, as if its process had been killed there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from django.db import connection


class Killed(Exception):
    """The command ends here, as if it had been killed."""


def killed_before(statement: str, occurrence: int = 1) -> AbstractContextManager[None]:
    """Let nothing from the first statement on that begins so reach the database any more."""
    seen = 0

    def execute(run: Any, sql: str, *rest: Any) -> Any:
        nonlocal seen
        seen += sql.startswith(statement)
        if seen >= occurrence and not sql.startswith(("RESET", "SELECT pg_advisory_unlock")):
            raise Killed
        return run(sql, *rest)

    return connection.execute_wrapper(execute)
