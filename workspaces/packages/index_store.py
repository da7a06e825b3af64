"""Writing a distribution's index: all of it in one transaction, or nothing.

What was read goes by ``COPY`` into a table that only this transaction sees. The rows that readers
see are then made the same, and only those that differ are touched: from one day to the next that is
a few hundred of many thousand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import structlog
from django.db import connection, transaction
from django.db.models.functions import Now

from controlplane.database.locks import lock_until_commit
from workspaces.families import OsFamily

from .models import Package, PackageIndex
from .names import is_package_name, stem
from .readers import MalformedIndexError, Offer

log = structlog.get_logger(__name__)

MAX_PROVIDES: Final = 1_000
_SHOWN_PROVIDERS: Final = 50
"""No virtual package names more: ten alternatives help a person, and hundreds do not."""

_VERSION: Final = re.compile(r"[!-~]+")

_STAGE: Final = """
CREATE TEMPORARY TABLE offer (
    position integer, name text COLLATE "C", stem text, version text, repository text,
    provides text[]
) ON COMMIT DROP
"""
_COPY: Final = "COPY offer (position, name, stem, version, repository, provides) FROM STDIN"
_FRESH: Final = """
CREATE TEMPORARY TABLE fresh ON COMMIT DROP AS
SELECT name, stem, repository, versions, '{}'::text[] AS providers, false AS virtual FROM (
    SELECT name, min(stem) AS stem, (array_agg(repository ORDER BY position))[1] AS repository,
        array_agg(version ORDER BY position) AS versions
    FROM (SELECT DISTINCT ON (name, version) * FROM offer ORDER BY name, version, position) AS one
    GROUP BY name
) AS packages
UNION ALL
SELECT provided, '', '', '{}', (array_agg(DISTINCT name))[:%(shown)s], true
FROM offer, unnest(provides) AS provided
WHERE NOT EXISTS (SELECT FROM offer AS package WHERE package.name = provided)
GROUP BY provided
"""
_DELETE: Final = """
DELETE FROM workspaces_package AS old WHERE family = %(family)s AND NOT EXISTS (
    SELECT FROM fresh WHERE fresh.name = old.name AND fresh.repository = old.repository
        AND fresh.versions = old.versions::text[]
        AND fresh.providers = old.providers::text[]
        AND fresh.virtual = old.virtual
)
"""
_INSERT: Final = """
INSERT INTO workspaces_package
    (family, name, folded, squeezed, size, stem, repository, versions, providers, virtual)
SELECT %(family)s, name, folded, squeezed, length(squeezed), stem, repository, versions,
    providers, virtual
FROM fresh, lower(name) AS folded,
    regexp_replace(lower(name), '[^a-z0-9+]', '', 'g') AS squeezed
ON CONFLICT (family, name) DO NOTHING
"""
"""Not with a condition on the table itself: it grows meanwhile, and after a change of many rows the
planner may think it empty and read all of it for each new one."""


def replace_index(
    family: OsFamily, offers: Iterable[Offer], *, architecture: str, base_image: str
) -> int:
    """Make ``offers`` the index of ``family``; return how many packages it has.

    ``offers`` is read inside the transaction, so it must not wait for another system.

    :raises MalformedIndexError: there is no package in it; the index stays as it was.
    """
    with transaction.atomic():
        lock_until_commit(f"package-index:{family.name}")
        with connection.cursor() as cursor:
            cursor.execute(_STAGE)
            _copy(_sound(offers, family))
            cursor.execute(_FRESH, {"shown": _SHOWN_PROVIDERS})
            cursor.execute("CREATE UNIQUE INDEX ON fresh (name)")
            cursor.execute("ANALYZE fresh")
            cursor.execute(_DELETE, {"family": family.name})
            cursor.execute(_INSERT, {"family": family.name})
            cursor.execute("DROP TABLE offer, fresh")
        packages = Package.objects.filter(family=family.name, virtual=False).count()
        if packages == 0:
            raise MalformedIndexError("The package manager knows no package.")
        PackageIndex.objects.update_or_create(
            family=family.name,
            defaults={
                "architecture": architecture,
                "base_image": base_image,
                "packages": packages,
                "read_at": Now(),
                "tried_at": Now(),
                "requested_at": None,
                "failures": 0,
                "error": "",
            },
        )
    _analyze()
    return packages


def _sound(offers: Iterable[Offer], family: OsFamily) -> Iterator[tuple[object, ...]]:
    """Yield rows of the offers that the family's package manager could be asked for by name."""
    unsound = 0
    for position, offer in enumerate(offers):
        if not is_package_name(offer.name, family) or not _is_version(offer.version):
            unsound += 1
            continue
        provides = {name for name in offer.provides[:MAX_PROVIDES] if is_package_name(name, family)}
        repository = offer.repository[:128] if offer.repository.isprintable() else ""
        yield (
            position,
            offer.name,
            stem(offer.name.lower()),
            offer.version,
            repository,
            sorted(provides),
        )
    if unsound:
        log.warning("package_offers_left_out", family=family.name, offers=unsound)


def _is_version(version: str) -> bool:
    return len(version) <= 255 and _VERSION.fullmatch(version) is not None


def _copy(rows: Iterator[tuple[object, ...]]) -> None:
    """Go below Django's cursor, which has no ``COPY``; its errors come out as Django's."""
    with (
        connection.wrap_database_errors,
        connection.connection.cursor() as cursor,
        cursor.copy(_COPY) as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _analyze() -> None:
    """Tell the planner at once what is there now; it would find out by itself within minutes."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE workspaces_package")
