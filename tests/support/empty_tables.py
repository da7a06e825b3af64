"""Emptying the database after a test that committed what it wrote, as quickly as that goes.

Django truncates every table after every such test, and writes content types and permissions anew:
an eighth of a second for a test that has often written three rows.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import psycopg
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase

from tests.support.waiting import LONG_WAIT

KEPT = tuple(model._meta.db_table for model in (ContentType, Permission))
"""What migrating writes, and Django writes again after it has emptied everything."""

LARGE = 256 * 1024
"""Bytes from which a table is truncated. Deleting the rows of a smaller one is much quicker."""


def quick_flush() -> AbstractContextManager[Any]:
    """Have tests that commit empty only the tables with rows; the test database has to be there.

    Afterwards everything is as Django leaves it: no rows, sequences go on where they were, content
    types and permissions are as after migrating. Where a test has changed those, or asks for apps
    or rows of its own, Django does it.
    """
    by_django = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    migrated = [_kept()]

    def teardown(case: TransactionTestCase) -> None:
        names: Any = case._databases_names(include_mirrors=False)  # type: ignore[attr-defined]
        special = case.available_apps is not None or case.serialized_rollback
        if special or list(names) != [connection.alias] or _kept() != migrated[0]:
            by_django(case)
            migrated[0] = _kept()
        else:
            empty()

    return patch.object(TransactionTestCase, "_fixture_teardown", teardown)


def empty() -> None:
    """Delete all rows of our tables but the kept ones, whoever else is still writing.

    A deadlock with such a writer ends one of the two, and may end this: then it is done again.
    """
    deadline = time.monotonic() + LONG_WAIT
    while True:
        try:
            with transaction.atomic():
                _empty_all()
        except OperationalError as error:
            deadlock = isinstance(error.__cause__, psycopg.errors.DeadlockDetected)
            if not deadlock or time.monotonic() > deadline:
                raise
        else:
            return


def _empty_all() -> None:
    name = connection.ops.quote_name
    with connection.cursor() as cursor:
        tables = _tables()
        # Whoever writes has committed afterwards, and readers are not waited for.
        cursor.execute(f"LOCK TABLE {', '.join(map(name, tables))} IN EXCLUSIVE MODE")
        looks = (
            f"SELECT %s, pg_relation_size('{each}') WHERE EXISTS (SELECT FROM {each})"  # noqa: S608
            for each in map(name, tables)
        )
        cursor.execute(" UNION ALL ".join(looks), tables)
        found = dict(cursor.fetchall())
        # Truncated first: that is refused where checks of deleted rows wait for the commit.
        if large := [name(each) for each, size in found.items() if size > LARGE]:
            cursor.execute(f"TRUNCATE {', '.join(large)} CASCADE")
        # In any order, as all of Django's foreign keys are checked at the commit.
        for each, size in found.items():
            if size <= LARGE:
                cursor.execute(f"DELETE FROM {name(each)}")  # noqa: S608


def _tables() -> list[str]:
    """Return the tables of our models that there are: a test may have gone back a migration."""
    models = apps.get_models(include_auto_created=True)
    wanted = {model._meta.db_table for model in models if model._meta.managed} - set(KEPT)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class"
            " WHERE relkind IN ('r', 'p') AND relname = ANY(%s) AND pg_table_is_visible(oid)"
            " ORDER BY relname",
            [list(wanted)],
        )
        return [each for (each,) in cursor.fetchall()]


def _kept() -> tuple[Any, ...]:
    """Return what tells whether the kept rows are still the same."""
    sums = (
        f"(SELECT md5(string_agg(row::text, ',' ORDER BY id)) FROM {table} row)"  # noqa: S608
        for table in map(connection.ops.quote_name, KEPT)
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(sums)}")
        told: tuple[Any, ...] = cursor.fetchone()
        return told
