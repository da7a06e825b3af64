"""What a tool in a workspace has renewed: proposed to the account's owner, used once he approves.

It comes out of a workspace, where anybody may have written anything: tokens of somebody else's
account, under the identity of this one, cannot be told from renewed ones by their looks. Until its
owner approves it, a renewed secret is given to the workspace that it came from, and to no other.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeGuard

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from accounts import sealing
from accounts.connected import account_not_found, place_of, place_of_renewed, reveal
from accounts.models import ConnectedAccount, RenewedSecret
from accounts.providers import Provider, Secret, SecretRefused, read_secret
from controlplane.errors import Conflict, NotFound

log = structlog.get_logger(__name__)

RENEWING = frozenset({Provider.CODEX.value})
"""Providers whose tool renews the secret by itself."""
CLOCK_SKEW = timedelta(minutes=10)
"""A workspace that says that it renewed a secret later than that has made it up."""
KEPT_AN_ACCOUNT = 20
"""Of how many workspaces what they renewed is kept, the latest ones."""


class Renewal(Enum):
    """What became of a renewed secret."""

    PROPOSED = "proposed"
    UPDATED = "updated"
    """The workspace had proposed an earlier state."""
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """It is not of the account's shape, is not later, or is of somebody else."""
    OUTDATED = "outdated"
    """The account was deleted, marked invalid or connected again since it was delivered."""


def propose_renewed(
    account_id: uuid.UUID, secret: str, *, workspace_id: uuid.UUID, generation: int
) -> Renewal:
    """Seal what a workspace has renewed beside the account's secret, if it is a later state of it.

    ``generation`` is that of the delivery. Of each workspace the last state is kept. Raises
    ``SealError`` when the account's secret does not open.
    """
    with transaction.atomic():
        account = ConnectedAccount.objects.select_for_update().filter(pk=account_id).first()
        if not _takes_renewals(account, generation):
            return Renewal.OUTDATED
        present = reveal(account)
        renewed = _later(account, present, secret)
        if renewed is None:
            return Renewal.UNCHANGED if secret == present else Renewal.REFUSED
        kept = RenewedSecret.objects.filter(account=account, workspace_id=workspace_id).first()
        if kept is not None and _opened(kept) == renewed.value:
            return Renewal.UNCHANGED
        _keep(account, renewed, workspace_id)
    log.info("account_renewal_proposed", account=str(account_id), workspace=str(workspace_id))
    return Renewal.PROPOSED if kept is None else Renewal.UPDATED


def _takes_renewals(
    account: ConnectedAccount | None, generation: int
) -> TypeGuard[ConnectedAccount]:
    return (
        account is not None
        and account.status == ConnectedAccount.Status.ACTIVE
        and account.provider in RENEWING
        and account.generation == generation
    )


def _keep(account: ConnectedAccount, renewed: Secret, workspace_id: uuid.UUID) -> None:
    """Put it in the place of what the workspace had renewed before."""
    mine = RenewedSecret.objects.filter(account=account)
    mine.filter(workspace_id=workspace_id).delete()
    RenewedSecret.objects.create(
        account=account,
        workspace_id=workspace_id,
        sealed=sealing.seal(renewed.value, place_of_renewed(account, workspace_id)),
        metadata=dict(renewed.metadata),
    )
    latest = mine.order_by("-pk").values_list("pk", flat=True)[:KEPT_AN_ACCOUNT]
    mine.exclude(pk__in=list(latest)).delete()


def list_renewals(account_id: uuid.UUID, *, owner_user_id: str | None) -> QuerySet[RenewedSecret]:
    """Return what waits for the owner's approval, the latest first, without the secrets.

    Raises ``NotFound`` (``connected-account-not-found``).
    """
    if not ConnectedAccount.objects.owned_by(owner_user_id).kept().filter(pk=account_id).exists():
        raise account_not_found()
    return RenewedSecret.objects.filter(account_id=account_id).order_by("-pk").defer("sealed")


def approve_renewal(
    account_id: uuid.UUID, renewal_id: uuid.UUID, *, owner_user_id: str | None
) -> ConnectedAccount:
    """Put a renewed secret in the place of the account's; return the account.

    What other workspaces have renewed is forgotten: what is still later, they propose again.
    Raises ``NotFound`` (``connected-account-not-found``, ``renewal-not-found``) and ``Conflict``
    (``renewal-outdated``).
    """
    with transaction.atomic():
        accounts = ConnectedAccount.objects.owned_by(owner_user_id).kept()
        account = accounts.select_for_update().filter(pk=account_id).first()
        if account is None:
            raise account_not_found()
        kept = RenewedSecret.objects.filter(pk=renewal_id, account=account).first()
        if kept is None:
            raise NotFound("The account has no such renewal.", code="renewal-not-found")
        renewed = _approvable(account, kept)
        account.sealed = sealing.seal(renewed.value, place_of(account))
        account.metadata = dict(renewed.metadata)
        account.save(update_fields=["sealed", "metadata", "updated_at"])
        ConnectedAccount.objects.filter(pk=account.pk).update(last_synced_at=Now())
        RenewedSecret.objects.filter(account=account).delete()
        account.refresh_from_db()
    log.info("account_renewed", account=str(account_id), provider=account.provider)
    return account


def _approvable(account: ConnectedAccount, kept: RenewedSecret) -> Secret:
    secret = _opened(kept)
    try:
        renewed = None if secret is None else _later(account, reveal(account), secret)
    except sealing.SealError:
        renewed = None
    if renewed is None or account.status != ConnectedAccount.Status.ACTIVE:
        raise Conflict(
            "The account has a newer secret, or is not active: connect it again.",
            code="renewal-outdated",
        )
    return renewed


def secret_for(account: ConnectedAccount, workspace_id: uuid.UUID | None) -> str:
    """Return the secret that a workspace is given: what it has renewed itself, else the account's.

    Raises ``SealError`` when the account's does not open.
    """
    present = reveal(account)
    if workspace_id is None or account.provider not in RENEWING:
        return present
    kept = RenewedSecret.objects.filter(account=account, workspace_id=workspace_id).first()
    own = None if kept is None else _opened(kept)
    if own is None or _later(account, present, own) is None:
        return present
    return own


def _opened(kept: RenewedSecret) -> str | None:
    """Return the secret; None when no key that is known opens it."""
    place = place_of_renewed(kept.account, kept.workspace_id)
    try:
        return sealing.unseal(bytes(kept.sealed), place)
    except sealing.SealError:
        return None


def _later(account: ConnectedAccount, present: str, secret: str) -> Secret | None:
    """Return the secret when it is of the same account's shape and identity, and later."""
    provider = Provider(account.provider)
    try:
        renewed = read_secret(provider, account.name, secret)
        before = read_secret(provider, account.name, present).metadata
    except SecretRefused:
        return None
    now, then = _moment(renewed.metadata.get("lastRefresh")), _moment(before.get("lastRefresh"))
    if now is None or now > timezone.now() + CLOCK_SKEW or (then is not None and now <= then):
        return None
    if any(renewed.metadata.get(name) != before.get(name) for name in ("accountId", "authMode")):
        return None
    return renewed


def _moment(text: object) -> datetime | None:
    """Return a moment in time; one without a zone is in UTC, and nonsense is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        return None
