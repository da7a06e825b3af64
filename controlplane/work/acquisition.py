"""Acquiring the lease of a row in one statement, however the row is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models.sql import UpdateQuery

M = TypeVar("M", bound=models.Model)

_ACQUIRE = """
WITH {table} AS (
    {update} WHERE {table}.{key} = ({search} LIMIT 1 FOR UPDATE OF {table} SKIP LOCKED)
    RETURNING *
)
"""


def acquire_first(rows: models.QuerySet[M], written: Mapping[str, Any]) -> M | None:
    """Write ``written`` to the first of ``rows`` that nobody has locked; return it as it is then.

    What ``rows`` selects related comes with it. None when there is none. Search, write and read are
    one statement, so that nobody waits for the time between them.
    """
    database = connections[rows.db]
    model = rows.model
    key = model._meta.pk.column
    assert key is not None, "a key of several columns is nobody's lease"
    update = UpdateQuery(model)
    update.add_update_values(dict(written))
    update_sql, update_values = update.get_compiler(connection=database).as_sql()
    search = rows.values("pk").query.get_compiler(connection=database)
    try:
        search_sql, search_values = search.as_sql()
    except EmptyResultSet:
        return None
    # The read names the table, and finds the row that was just written under that name.
    written_row = model._default_manager.using(rows.db).all()
    written_row.query.select_related = rows.query.select_related
    read_sql, _ = written_row.query.get_compiler(connection=database).as_sql()
    prefix = _ACQUIRE.format(
        table=database.ops.quote_name(model._meta.db_table),
        key=database.ops.quote_name(key),
        update=update_sql,
        search=search_sql,
    )

    def acquire(execute: Any, sql: str, values: Any, many: bool, context: Any) -> Any:
        # What else is sent here belongs to a new connection.
        if sql == read_sql:
            sql, values = prefix + sql, (*update_values, *search_values, *values)
        return execute(sql, values, many, context)

    wrapped: AbstractContextManager[None] = database.execute_wrapper(acquire)
    with wrapped:
        return next(iter(written_row), None)
