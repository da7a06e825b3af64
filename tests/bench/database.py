"""A database of the benchmark's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import connection, connections

from tests.bench.figures import Figure, Measure


@contextmanager
def bench_database() -> Iterator[None]:
    """Make a new database the default one for the block; drop it afterwards."""
    before = connection.settings_dict["NAME"]
    connection.settings_dict["TEST"]["NAME"] = f"bench_{before}"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield
    finally:
        connections.close_all()
        connection.creation.destroy_test_db(before, verbosity=0)


def in_own_database(measure: Measure) -> Measure:
    """Return ``measure`` with a new database around it."""

    def measured() -> Iterable[Figure]:
        with bench_database():
            yield from measure()

    return measured
