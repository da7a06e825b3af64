"""The database after a test that committed: empty, whoever else uses it."""

from __future__ import annotations

import threading

import psycopg
import pytest
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase

from tests.support import empty_tables
from tests.support.engines import make_engine
from tests.support.waiting import LONG_WAIT
from workspaces.models import Engine, Workspace

pytestmark = pytest.mark.django_db(transaction=True)


class Case(TransactionTestCase):
    """As pytest-django makes one for each test that commits."""

    __test__ = False  # pytest is not to take it for a test

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        """Nothing: only what comes after a test is of interest."""


def after_a_test() -> None:
    Case()._fixture_teardown()  # type: ignore[attr-defined]


def rows() -> dict[str, int]:
    """How many rows each table has that has any."""
    with connection.cursor() as cursor:
        found = {}
        for table in connection.introspection.django_table_names(only_existing=True):
            cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608
            if count := cursor.fetchone()[0]:
                found[table] = count
    return found


def test_what_is_left_is_what_django_leaves() -> None:
    group = Group.objects.create(name="a")
    group.permissions.set(Permission.objects.all())
    make_engine("one")
    workspace = Workspace.objects.create(owner_user_id="usr_a", name="a")
    after_a_test()
    left = rows()
    assert set(left) == set(empty_tables.KEPT)
    assert Group.objects.create(name="b").pk > group.pk  # the sequence goes on
    assert not Workspace.objects.filter(pk=workspace.pk).exists()
    call_command("flush", verbosity=0, interactive=False, reset_sequences=False)
    assert rows() == left


def test_a_large_table_is_emptied_with_all_that_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(empty_tables, "LARGE", 0)
    group = Group.objects.create(name="a")
    group.permissions.set(Permission.objects.all())
    after_a_test()
    assert set(rows()) == set(empty_tables.KEPT)


def test_permissions_and_content_types_that_a_test_has_changed_are_restored() -> None:
    before = rows()
    codenames = set(Permission.objects.values_list("codename", flat=True))
    Permission.objects.first().delete()  # type: ignore[union-attr]
    ContentType.objects.create(app_label="nobodys", model="thing")
    after_a_test()
    assert rows() == before
    assert set(Permission.objects.values_list("codename", flat=True)) == codenames


def test_a_writer_that_has_not_committed_yet_is_waited_for() -> None:
    written, go_on = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with transaction.atomic():
                make_engine("late")
                written.set()
                assert go_on.wait(LONG_WAIT)
        finally:
            connection.close()

    writer = threading.Thread(target=write)

    def empty() -> None:
        try:
            after_a_test()
        finally:
            connection.close()

    emptying = threading.Thread(target=empty)
    writer.start()
    assert written.wait(LONG_WAIT)
    emptying.start()
    try:
        with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as c:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database ="
            of_ours = "(SELECT oid FROM pg_database WHERE datname = current_database())"
            while c.execute(f"{waiting} {of_ours}").fetchone() == (0,):
                assert emptying.is_alive()
                c.rollback()
    finally:
        go_on.set()
        writer.join(LONG_WAIT)
        emptying.join(LONG_WAIT)
    assert not Engine.objects.exists()


def test_somebody_who_only_reads_is_not_waited_for() -> None:
    make_engine("one")
    reader = connection.copy()
    try:
        reader.set_autocommit(False)
        with reader.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM workspaces_engine")
            after_a_test()
            assert not Engine.objects.exists()
    finally:
        reader.rollback()
        reader.close()
