"""Keeping the indexes of the distributions fresh: ``manage.py syncpackages`` and the build worker.

One process at a time reads one family, under an advisory lock. What was read goes to a file first
and into the database afterwards, so that no transaction waits for a distribution's mirror.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import structlog
from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.database.locks import try_advisory_lock
from workspaces.families import FAMILIES

from .index_store import replace_index
from .models import PackageIndex
from .readers import MalformedIndexError, read_listing
from .reading import PackageEngine, PackageReadingError, configured_engine

log = structlog.get_logger(__name__)

_MOST_DOUBLINGS = 16


class PackageSyncError(Exception):
    """An index was not read anew and is what it was before; the text is for the operator."""


class PackageSyncBusyError(PackageSyncError):
    """Another process is reading this family's index right now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimes:
    """When an index is read anew, and how soon again after a failure: twice as late each time."""

    ttl: timedelta
    backoff: timedelta
    since: datetime = field(default_factory=timezone.now)
    """When the worker started."""

    def is_due(self, index: PackageIndex | None, base_image: str) -> bool:
        """Tell whether a worker should read an index now; None is one that nobody ever tried.

        One of another image than ``base_image`` may be another release of the distribution. It is
        due once in a worker's life, or workers with different images would read it in turns.
        """
        if index is None:
            return True
        now = timezone.now()
        if index.failures and index.tried_at is not None:
            wait = self.backoff * 2 ** min(index.failures - 1, _MOST_DOUBLINGS)
            if now < index.tried_at + min(wait, max(self.ttl, self.backoff)):
                return False
        expires_at = index.expires_at(self.ttl)
        if expires_at is None or expires_at <= now or index.requested_at is not None:
            return True
        is_earlier = index.read_at is not None and index.read_at < self.since
        return is_earlier and index.base_image != base_image


def sync_family(family_name: str, *, engine: PackageEngine, cancelled: threading.Event) -> int:
    """Read the index of one family anew; return how many packages it has.

    :raises PackageSyncBusyError: somebody else is at it.
    :raises PackageSyncError: it could not be read; the failure is also written to its row.
    """
    family = FAMILIES[family_name]
    with try_advisory_lock(_lock_name(family_name)) as held:
        if not held:
            raise PackageSyncBusyError(f"Another process is reading {family.title}.")
        engine.remove_leftovers(family)
        try:
            with engine.listing(family, cancelled=cancelled) as lines:
                listing, offers = read_listing(family.package_manager, lines)
                packages = replace_index(
                    family,
                    offers,
                    architecture=listing.architecture,
                    base_image=engine.base_images[family_name],
                )
        except (PackageReadingError, MalformedIndexError, OSError) as error:
            if not cancelled.is_set():
                _note_failure(family_name, str(error))
            log.warning("packages_not_read", family=family_name, reason=str(error).split("\n")[0])
            raise PackageSyncError(f"{family.title}: {error}") from error
    log.info("packages_read", family=family_name, packages=packages)
    return packages


def sync_due_families(
    stopped: threading.Event, *, families: Iterable[str], engine: PackageEngine, times: SyncTimes
) -> int:
    """Read those of ``families`` whose index is due, one after the other; return how many.

    Others are read when an operator asks for it. A task of the build worker. Also removes what
    readings that were killed left on the engine.
    """
    read = 0
    wanted = PackageIndex.objects.filter(requested_at__isnull=False, pk__in=FAMILIES)
    for name in dict.fromkeys([*families, *wanted.values_list("pk", flat=True)]):
        if stopped.is_set():
            break
        index = PackageIndex.objects.filter(pk=name).first()
        if not times.is_due(index, engine.base_images[name]):
            continue
        try:
            sync_family(name, engine=engine, cancelled=stopped)
        except PackageSyncError:
            continue
        read += 1
    for name in engine.families_at_work() & FAMILIES.keys():
        with try_advisory_lock(_lock_name(name)) as held:
            if held:
                engine.remove_leftovers(FAMILIES[name])
    return read


def request_sync(family_name: str) -> None:
    """Ask the build workers to read a family's index anew, whatever its age and its failures."""
    PackageIndex.objects.update_or_create(
        pk=family_name, defaults={"requested_at": Now(), "failures": 0}
    )


def configured_times() -> SyncTimes:
    """Return the times of the settings."""
    return SyncTimes(
        ttl=timedelta(milliseconds=settings.PACKAGE_INDEX_TTL_MS),
        backoff=timedelta(milliseconds=settings.PACKAGE_SYNC_BACKOFF_MS),
    )


def sync_task() -> partial[int]:
    """Return what a build worker does every so often; it takes the event that stops it."""
    return partial(
        sync_due_families,
        families=tuple(settings.PACKAGE_SYNC_FAMILIES),
        engine=configured_engine(),
        times=configured_times(),
    )


def _lock_name(family_name: str) -> str:
    return f"package-sync:{settings.SVC_INSTANCE_ID}:{family_name}"


def _note_failure(family_name: str, error: str) -> None:
    PackageIndex.objects.get_or_create(pk=family_name)
    PackageIndex.objects.filter(pk=family_name).update(
        tried_at=Now(), failures=F("failures") + 1, error=error, requested_at=None
    )
