"""Breaking in at one statement: something happens before it, or its answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections


def elsewhere(act: Callable[[], object]) -> None:
    """Do something over a connection of its own."""

    def do() -> None:
        try:
            act()
        finally:
            connections.close_all()

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


@contextmanager
def before(step: str, act: Callable[[], object]) -> Iterator[None]:
    """Have something done elsewhere just before the statement of a step is sent."""
    done: list[str] = []

    def look(execute: Any, sql: str, *rest: Any) -> Any:
        if step in sql and not done:
            done.append(sql)
            elsewhere(act)
        return execute(sql, *rest)

    with connection.execute_wrapper(look):
        yield
    assert done


@contextmanager
def answer_lost(step: str) -> Iterator[None]:
    """Cut the connection once the statement of a step was carried out, before its answer is in."""
    done: list[str] = []

    def cut(execute: Any, sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if step in sql and not done:
            done.append(sql)
            if connection.in_atomic_block:
                _lose_commit()
            else:
                connection.connection.close()
                execute(sql, *rest)
                pytest.fail("the connection was not cut")
        return result

    with connection.execute_wrapper(cut):
        yield
    assert done


def _lose_commit() -> None:
    raw = connection.connection
    commit = raw.commit

    def commit_and_cut() -> None:
        commit()
        raw.close()
        raise psycopg.OperationalError("the connection was cut")

    raw.commit = commit_and_cut
