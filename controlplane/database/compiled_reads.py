"""Reads whose statement the ORM compiles once per process, and that are then sent as they are.

To compile the statements of a small read takes several times as long as to send them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.query import ModelIterable, ValuesListIterable, get_related_populators

Row = TypeVar("Row")


def compiled_rows(rows: Callable[..., QuerySet[Any, Row]], *values: Any) -> list[Row]:
    """Return what ``list(rows(*values))`` does, without compiling its statement each time.

    ``rows`` is a function of a module. It makes a queryset of instances (also with related ones,
    annotations and deferred fields) or a ``values_list`` on the default database. It uses its
    values as values of the statement and for nothing else, and depends on nothing that changes.
    Each value is a ``UUID``, a ``str`` or a ``timedelta``, or a small ``int``, for each of which
    there is a statement of its own; raises ``TypeError`` for others.
    """
    shape = tuple(value if type(value) is int else type(value) for value in values)
    key = (rows, shape)
    statement = _statements.get(key)
    if statement is None:
        statement = _statements[key] = _Statement(*key)
    return statement.read(values)


class _Statement:
    """A statement, the places of the values in it, and how its rows are read."""

    def __init__(self, rows: Callable[..., QuerySet[Any, Any]], shape: Sequence[Any]) -> None:
        given = [one if type(one) is int else _marker(one) for one in shape]
        queryset: Any = rows(*given)
        markers = {one: place for place, one in enumerate(given) if type(one) is not int}
        compiler = queryset.query.get_compiler(connection=connection)
        self._sql, parameters = compiler.as_sql()
        self._parameters = list(parameters)
        self._places = [
            (place, markers[parameter])
            for place, parameter in enumerate(parameters)
            if type(parameter) in _FILLED and parameter in markers
        ]
        if {number for _, number in self._places} != set(markers.values()):
            raise TypeError("The statement has a value in another form than it was given.")
        if queryset._prefetch_related_lookups:
            raise TypeError("Prefetching takes statements of its own.")
        reader = RowReader(compiler)
        readers: dict[Any, Callable[..., Any]] = {
            ModelIterable: reader.instance,
            ValuesListIterable: reader.values,
        }
        if queryset._iterable_class not in readers:
            raise TypeError("Its rows are neither instances nor tuples.")
        self._read_row = readers[queryset._iterable_class]

    def read(self, values: Sequence[Any]) -> list[Any]:
        """Return the rows for these values."""
        parameters = self._parameters.copy()
        for place, number in self._places:
            parameters[place] = values[number]
        with connection.cursor() as cursor:
            cursor.execute(self._sql, parameters)
            found = cursor.fetchall()
        return [self._read_row(row, connection) for row in found]


_FILLED = (uuid.UUID, str, timedelta)
_statements: dict[tuple[Callable[..., Any], tuple[Any, ...]], _Statement] = {}


class RowReader:
    """How the rows of a compiled statement become instances, as Django's ``ModelIterable`` does it.

    Holds no connection: any thread may use it.
    """

    def __init__(self, compiler: Any) -> None:
        columns = compiler.select
        self._converters = compiler.get_converters(column for column, _, _ in columns)
        if compiler.klass_info is None:
            return
        own = compiler.klass_info["select_fields"]
        self._model = compiler.klass_info["model"]
        self._own = slice(own[0], own[-1] + 1)
        self._names = [column.target.attname for column, _, _ in columns[self._own]]
        populators: Any = get_related_populators  # the stubs have that of a later Django
        self._related = populators(compiler.klass_info, columns, compiler.connection.alias)
        self._annotations = dict(compiler.annotation_col_map or {})

    def values(self, row: Sequence[Any], database: BaseDatabaseWrapper) -> tuple[Any, ...]:
        """Return the columns of a row."""
        values = list(row)
        for place, (converters, column) in self._converters.items():
            for convert in converters:
                values[place] = convert(values[place], column, database)
        return tuple(values)

    def instance(self, row: Sequence[Any], database: BaseDatabaseWrapper) -> Any:
        """Return the instance of a row, with its related ones and its annotations."""
        values = self.values(row, database)
        found = self._model.from_db(database.alias, self._names, values[self._own])
        for populator in self._related:
            populator.populate(values, found)
        for name, place in self._annotations.items():
            setattr(found, name, values[place])
        return found


def _marker(kind: type[Any]) -> Any:
    """Return a value that nothing else in a statement is equal to."""
    if kind is uuid.UUID:
        return uuid.uuid4()
    if kind is str:
        return uuid.uuid4().hex
    if kind is timedelta:
        return timedelta(microseconds=uuid.uuid4().int % 2**56)
    raise TypeError(f"{kind.__name__} is no value of a compiled read.")
