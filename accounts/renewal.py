"""Taking back what a tool in a workspace has renewed: only what is surely a later state of it.

It comes out of a workspace, where anybody may have written anything, and the owner may have
connected or deleted the account meanwhile.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from enum import Enum

import structlog
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from accounts import sealing
from accounts.connected import place_of, reveal
from accounts.models import ConnectedAccount
from accounts.providers import Provider, Secret, SecretRefused, read_secret

log = structlog.get_logger(__name__)

RENEWING = frozenset({Provider.CODEX.value})
"""Providers whose tool renews the secret by itself."""
CLOCK_SKEW = timedelta(minutes=10)
"""A workspace that says that it renewed a secret later than that has made it up."""


class Renewal(Enum):
    """What became of a renewed secret."""

    STORED = "stored"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """It is not of the account's shape, is not later, or is of somebody else."""
    OUTDATED = "outdated"
    """The account was deleted, marked invalid or connected again since it was delivered."""


def store_renewed(account_id: uuid.UUID, secret: str, *, generation: int) -> Renewal:
    """Seal a renewed secret in the place of the one that was delivered, if it is a later one.

    ``generation`` is that of the delivery. Only one of several writers of the same account gets
    through at a time, and each compares with what the one before it has left.

    Raises ``SealError`` when the present secret does not open.
    """
    with transaction.atomic():
        account = ConnectedAccount.objects.select_for_update().filter(pk=account_id).first()
        if (
            account is None
            or account.status != ConnectedAccount.Status.ACTIVE
            or account.provider not in RENEWING
            or account.generation != generation
        ):
            return Renewal.OUTDATED
        present = reveal(account)
        if secret == present:
            return Renewal.UNCHANGED
        renewed = _later(account, present, secret)
        if renewed is None:
            return Renewal.REFUSED
        account.sealed = sealing.seal(renewed.value, place_of(account))
        account.metadata = dict(renewed.metadata)
        account.save(update_fields=["sealed", "metadata"])
        ConnectedAccount.objects.filter(pk=account.pk).update(last_synced_at=Now())
    log.info("account_renewed", account=str(account_id), provider=account.provider)
    return Renewal.STORED


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
