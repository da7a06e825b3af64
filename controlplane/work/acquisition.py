"""Acquiring the lease of a row in one statement, however the row is looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.query import get_related_populators
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
    prefix = _ACQUIRE.format(
        table=database.ops.quote_name(model._meta.db_table),
        key=database.ops.quote_name(key),
        update=update_sql,
        search=search_sql,
    )
    # The read names the table, and finds the row that was just written under that name.
    reading = _reading(model, rows.query.select_related, database)
    with database.cursor() as cursor:
        cursor.execute(prefix + reading.sql, (*update_values, *search_values))
        row = cursor.fetchone()
    return None if row is None else reading.instance(row, database)


class _Reading:
    """How rows of a model are read with what they select related.

    Compiled once: for a claim it took longer than all that PostgreSQL did.
    """

    def __init__(self, model: type[Any], related: Any, database: BaseDatabaseWrapper) -> None:
        rows = model._default_manager.using(database.alias).all()
        rows.query.select_related = related
        compiler: Any = rows.query.get_compiler(connection=database)
        self.sql, values = compiler.as_sql()
        assert not values, "its statement is sent with the values of others"
        columns = compiler.select
        own = compiler.klass_info["select_fields"]
        self._model = model
        self._own = slice(own[0], own[-1] + 1)
        self._names = [column.target.attname for column, _, _ in columns[self._own]]
        populators: Any = get_related_populators  # the stubs have that of a later Django
        self._related = populators(compiler.klass_info, columns, database.alias)
        self._converters = compiler.get_converters(column for column, _, _ in columns)

    def instance(self, row: Sequence[Any], database: BaseDatabaseWrapper) -> Any:
        """Return the row of the model, with its related ones."""
        values = list(row)
        for place, (converters, column) in self._converters.items():
            for convert in converters:
                values[place] = convert(values[place], column, database)
        found = self._model.from_db(database.alias, self._names, values[self._own])
        for populator in self._related:
            populator.populate(values, found)
        return found


_readings: dict[tuple[type[Any], str, str], _Reading] = {}


def _reading(model: type[Any], related: Any, database: BaseDatabaseWrapper) -> _Reading:
    key = (model, repr(related), database.alias)
    if key not in _readings:
        _readings[key] = _Reading(model, related, database)
    return _readings[key]
