"""Acquiring the lease of a row in one statement, however the row is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import UpdateQuery

from controlplane.database.compiled_reads import RowReader

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
    prefix = _ACQUIRE.format(
        table=database.ops.quote_name(model._meta.db_table),
        key=database.ops.quote_name(key),
        update=update_sql,
        search=search_sql,
    )
    # The read names the table, and finds the row that was just written under that name.
    reading_sql, reader = _reading(model, rows.query.select_related, database)
    with database.cursor() as cursor:
        cursor.execute(prefix + reading_sql, (*update_values, *search_values))
        row = cursor.fetchone()
    return None if row is None else reader.instance(row, database)


_readings: dict[tuple[type[Any], str, str], tuple[str, RowReader]] = {}


def _reading(
    model: type[Any], related: Any, database: BaseDatabaseWrapper
) -> tuple[str, RowReader]:
    """Return how rows of a model are read with what they select related.

    Compiled once: for a claim it took longer than all that PostgreSQL did.
    """
    key = (model, repr(related), database.alias)
    if key not in _readings:
        rows = model._default_manager.using(database.alias).all()
        rows.query.select_related = related
        compiler: Any = rows.query.get_compiler(connection=database)
        sql, values = compiler.as_sql()
        assert not values, "its statement is sent with the values of others"
        _readings[key] = (sql, RowReader(compiler))
    return _readings[key]
