"""What PostgreSQL does for a piece of work: its statements, their plans, and how much they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg import Cursor

from runs.record.reading import rows

GROWING = (
    *("workspaces_workspace", "workspaces_sandbox", "workspaces_attempt", "workspaces_buildjob"),
    *("workspaces_runtimeinstance", "workspaces_workspaceevent", "runs_run"),
    *("run_head", "run_event", "run_process", "run_change", "run_checkpoint", "run_loss"),
)
"""Tables that get rows for as long as the installation is used; partitions begin with a name."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that was sent, with its values."""

    sql: str
    values: Sequence[Any] | Mapping[str, Any] | None

    def run(self) -> None:
        """Send it alone and fetch what it finds."""
        with connection.cursor() as cursor:
            cursor.execute(self.sql, self.values)
            cursor.fetchall()

    def plan(self, *, analyze: bool = False) -> dict[str, Any]:
        """Return its plan; with ``analyze`` with what was really read."""
        options = "ANALYZE, TIMING OFF, FORMAT JSON" if analyze else "FORMAT JSON"
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN ({options}) {self.sql}", self.values)
            (told,) = cursor.fetchone()
        found = json.loads(told) if isinstance(told, str) else told
        plan: dict[str, Any] = found[0]["Plan"]
        return plan


def statements(work: Callable[[], object]) -> list[Statement]:
    """Return the queries that ``work`` sends, the readers' own among them."""
    sent: list[Statement] = []

    def note(sql: str, values: Any) -> None:
        if sql.lstrip().upper().startswith(("SELECT", "WITH")):
            sent.append(Statement(sql, values))

    def through_django(run: Any, sql: str, values: Any, *rest: Any) -> Any:
        note(sql, values)
        return run(sql, values, *rest)

    with connection.execute_wrapper(through_django), _heard(note):
        work()
    return sent


def sequential_scans(plan: Mapping[str, Any]) -> set[str]:
    """Return the growing tables that a plan reads from one end to the other."""
    return {
        node["Relation Name"]
        for node in _nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith(GROWING)
    }


def rows_read(plan: Mapping[str, Any]) -> int:
    """Return how many rows an analyzed plan looked at, those that it threw away included."""
    thrown_away = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        (node["Actual Rows"] + sum(node.get(name, 0) for name in thrown_away))
        * node["Actual Loops"]
        for node in _nodes(plan)
        if "Relation Name" in node
    )


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


@contextmanager
def _heard(note: Callable[[str, Any], None]) -> Iterator[None]:
    """Listen to the cursors that read the log without Django."""

    class Listening(Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            note(str(query), params)
            return super().execute(query, params, **options)

    reader: Any = rows
    original, reader.Cursor = reader.Cursor, Listening
    try:
        yield
    finally:
        reader.Cursor = original
