"""Importing installations, and keeping what we know of them as the provider has it.

Whoever writes what the provider said takes the time *before* he asks (:func:`database_now`). The
row is locked while it is written, and what was asked for later stands: two syncs at once, a sync
that took long and an event that was delivered late all end with the newest answer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

import structlog
from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from controlplane.database.columns import ROWS_OF_A_STATEMENT
from controlplane.database.locks import lock_until_commit
from controlplane.errors import Fault, Forbidden, NotFound
from scm.app_connection import asking_for_a_client, open_provider, require_app
from scm.models import (
    Installation,
    InstallationGrant,
    InstallationRepository,
    InstallationRepositoryQuerySet,
    SourceRepository,
)
from scm.provider import (
    InstallationFacts,
    InstallationGoneError,
    InstallationSuspendedError,
    ProviderClient,
    RepositoryListing,
)

log = structlog.get_logger(__name__)

_REPEATED = [
    "owner_login", "name", "full_name", "default_branch", "is_private", "is_archived",
    "pushed_at", "synced_at", "removed_at",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Synced:
    """An installation as it is known now, and how many repositories it shows."""

    installation: Installation
    repository_count: int
    synced_at: datetime


def database_now() -> datetime:
    """Return the time of the database, which all processes share."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def import_installation(external_id: int, *, owner_user_id: str) -> Synced:
    """Take an installation over from the provider, with its repositories.

    The first owner to import it holds it; importing it again reads it again. Raises
    ``ServiceUnavailable`` (``scm-app-unconfigured``, ``scm-busy``), ``Forbidden``
    (``installation-not-granted``) for another owner without a grant, ``NotFound``
    (``installation-not-found``) when the provider does not know it, ``ProviderError``.
    """
    require_app()
    known = Installation.objects.filter(external_id=external_id).first()
    if known is not None and known.holder_user_id:
        _require_grant(known, owner_user_id)
    with asking_for_a_client(), open_provider() as provider:
        until, as_of = provider.deadline(), database_now()
        try:
            facts = provider.installation(external_id, until=until)
        except InstallationGoneError:
            note_deleted(external_id, as_of=as_of)
            raise installation_not_found() from None
        installation = record_installation(facts, as_of=as_of, imported_by=owner_user_id)
        log.info("installation_imported", installation=str(installation.pk))
        return _sync_if_active(provider, installation, as_of, until)


def sync_installation(installation_id: uuid.UUID, *, owner_user_id: str | None) -> Synced:
    """Read an installation and its repositories again, for an owner or, without one, an operator.

    Raises what :func:`import_installation` does, and ``Forbidden`` (``installation-not-active``)
    when the provider says that the installation is suspended or deleted.
    """
    require_app()
    installation = get_installation(installation_id, owner_user_id=owner_user_id)
    with asking_for_a_client():
        synced = refresh_installation(installation.external_id)
    if synced is None or synced.installation.status != Installation.Status.ACTIVE:
        raise installation_not_active()
    return synced


def refresh_installation(external_id: int) -> Synced | None:
    """Ask the provider for an installation and, when it is active, its repositories.

    One that it does not know is deleted from then on; ``None`` when we did not know it either.
    """
    with open_provider() as provider:
        until, as_of = provider.deadline(), database_now()
        try:
            facts = provider.installation(external_id, until=until)
        except InstallationGoneError:
            gone = note_deleted(external_id, as_of=as_of)
            return None if gone is None else _as_known(gone, as_of)
        return _sync_if_active(provider, record_installation(facts, as_of=as_of), as_of, until)


def record_installation(
    facts: InstallationFacts, *, as_of: datetime, imported_by: str | None = None
) -> Installation:
    """Store what was said of an installation at ``as_of``, unless something newer is known.

    With ``imported_by`` the owner gets it, if nobody holds it yet; raises ``Forbidden`` when it is
    another's. Returns the row as it is afterwards.
    """
    # By another clock it may be later already; but nothing that is still to come is older.
    as_of = min(as_of, database_now())
    with transaction.atomic():
        lock_until_commit(f"scm-installation:{facts.external_id}")
        rows = Installation.objects.select_for_update()
        row = rows.filter(external_id=facts.external_id).first()
        status = (
            Installation.Status.ACTIVE
            if facts.suspended_at is None
            else Installation.Status.SUSPENDED
        )
        if row is None or _stands(row, as_of, status):
            row = row or Installation(external_id=facts.external_id)
            row.account_id, row.account_login = facts.account_id, facts.account_login
            row.account_type = facts.account_type
            row.repository_selection = facts.repository_selection
            row.permissions = facts.permissions
            row.suspended_at = facts.suspended_at
            row.status = status
            row.observed_at = as_of
            row.save()
        if imported_by is not None:
            _hold(row, imported_by)
    return row


def _stands(row: Installation, as_of: datetime, status: str) -> bool:
    """Tell whether what is said now replaces the row; of one time what gives less does."""
    order = Installation.Status.values  # from the most open on
    return (row.observed_at, order.index(row.status)) <= (as_of, order.index(status))


def note_deleted(external_id: int, *, as_of: datetime) -> Installation | None:
    """Mark an installation as deleted at ``as_of``, unless something newer is known of it."""
    known = Installation.objects.filter(external_id=external_id)
    known.filter(observed_at__lte=as_of).update(
        status=Installation.Status.DELETED,
        suspended_at=None,
        observed_at=as_of,
        updated_at=Now(),
    )
    return known.first()


def store_repositories(
    installation_id: uuid.UUID, listing: RepositoryListing, *, as_of: datetime
) -> Installation:
    """Make a listing that was asked for at ``as_of`` the installation's repositories.

    Rows keep their ids whatever happens to the repositories' names. What an incomplete listing
    leaves out is not taken for removed. A listing older than the stored one changes nothing.
    """
    with transaction.atomic():
        installation = Installation.objects.select_for_update().get(pk=installation_id)
        if installation.synced_at is not None and installation.synced_at >= as_of:
            return installation
        # In one order everywhere: syncs of two installations may insert the same repositories.
        listed = sorted(listing.repositories, key=lambda facts: facts.external_id)
        ids = _repository_ids([facts.external_id for facts in listed])
        InstallationRepository.objects.bulk_create(
            [
                InstallationRepository(
                    installation=installation,
                    repository_id=ids[facts.external_id],
                    owner_login=facts.owner_login,
                    name=facts.name,
                    full_name=facts.full_name,
                    default_branch=facts.default_branch,
                    is_private=facts.is_private,
                    is_archived=facts.is_archived,
                    pushed_at=facts.pushed_at,
                    synced_at=as_of,
                )
                for facts in listed
            ],
            batch_size=ROWS_OF_A_STATEMENT,
            update_conflicts=True,
            unique_fields=["installation", "repository"],
            update_fields=_REPEATED,
        )
        if listing.is_complete:
            left = installation.repositories.present().exclude(synced_at=as_of)
            left.update(removed_at=as_of)
        installation.synced_at = as_of
        installation.save(update_fields=["synced_at", "updated_at"])
    return installation


def get_installation(installation_id: uuid.UUID, *, owner_user_id: str | None) -> Installation:
    """Return an installation that the owner was granted; any, when no owner asks.

    One that was not granted is as absent as an unknown one: ``NotFound``
    (``installation-not-found``).
    """
    rows = Installation.objects.filter(pk=installation_id)
    if owner_user_id is not None:
        rows = rows.filter(grants__owner_user_id=owner_user_id)
    installation = rows.first()
    if installation is None:
        raise installation_not_found()
    return installation


def list_installations(*, owner_user_id: str) -> QuerySet[Installation]:
    """Return the active installations that an owner is granted."""
    return Installation.objects.granted_to(owner_user_id)


def list_repositories(
    installation_id: uuid.UUID, *, owner_user_id: str, search: str | None = None
) -> InstallationRepositoryQuerySet:
    """Return the repositories that an installation shows an owner, by part of ``owner/name``.

    Raises what :func:`get_installation` does, and ``Forbidden`` (``installation-not-active``).
    """
    installation = get_installation(installation_id, owner_user_id=owner_user_id)
    if installation.status != Installation.Status.ACTIVE:
        raise installation_not_active()
    rows = InstallationRepository.objects.filter(installation=installation).present()
    rows = rows.select_related("repository")
    return rows.filter(full_name__icontains=search) if search else rows


def installation_not_found(*faults: Fault) -> NotFound:
    """Return the error for an installation that neither we nor the provider know."""
    return NotFound("There is no such installation.", code="installation-not-found", errors=faults)


def installation_not_active(*faults: Fault) -> Forbidden:
    """Return the error for an installation that is suspended or deleted."""
    return Forbidden(
        "The installation is suspended or was removed at the provider.",
        code="installation-not-active",
        errors=faults,
    )


def _require_grant(installation: Installation, owner_user_id: str, *faults: Fault) -> None:
    if not installation.grants.filter(owner_user_id=owner_user_id).exists():
        raise installation_not_granted(*faults)


def installation_not_granted(*faults: Fault) -> Forbidden:
    """Return the error for an installation of another owner."""
    return Forbidden(
        "This installation belongs to another owner: an operator has to grant it to you.",
        code="installation-not-granted",
        errors=faults,
    )


def _hold(installation: Installation, owner_user_id: str) -> None:
    """Give the installation to its first importer; raise for anybody else without a grant."""
    if installation.holder_user_id:
        _require_grant(installation, owner_user_id)
        return
    installation.holder_user_id = owner_user_id
    installation.save(update_fields=["holder_user_id", "updated_at"])
    InstallationGrant.objects.get_or_create(installation=installation, owner_user_id=owner_user_id)


def _sync_if_active(
    provider: ProviderClient, installation: Installation, as_of: datetime, until: float
) -> Synced:
    """Read the repositories of an installation, if it is active, and count them."""
    if installation.status == Installation.Status.ACTIVE:
        as_of = database_now()
        try:
            listing = provider.repositories(installation.external_id, until=until)
        except (InstallationSuspendedError, InstallationGoneError):
            # It has become so since we asked for it.
            return _as_known(_observed_again(provider, installation, until), as_of)
        installation = store_repositories(installation.pk, listing, as_of=as_of)
    return _as_known(installation, as_of)


def _observed_again(
    provider: ProviderClient, installation: Installation, until: float
) -> Installation:
    as_of = database_now()
    try:
        facts = provider.installation(installation.external_id, until=until)
    except InstallationGoneError:
        return note_deleted(installation.external_id, as_of=as_of) or installation
    return record_installation(facts, as_of=as_of)


def _as_known(installation: Installation, as_of: datetime) -> Synced:
    if installation.status != Installation.Status.ACTIVE:
        return Synced(installation, 0, as_of)
    count = InstallationRepository.objects.filter(installation=installation).present().count()
    return Synced(installation, count, installation.synced_at or as_of)


def _repository_ids(external_ids: list[int]) -> dict[int, uuid.UUID]:
    """Return our ids of the provider's repositories, made where there were none."""
    SourceRepository.objects.bulk_create(
        [SourceRepository(external_id=external_id) for external_id in external_ids],
        batch_size=ROWS_OF_A_STATEMENT,
        ignore_conflicts=True,
    )
    rows = SourceRepository.objects.filter(external_id__in=external_ids)
    return dict(rows.values_list("external_id", "pk"))
