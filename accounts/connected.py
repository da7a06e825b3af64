"""Connecting accounts: sealed when they come, erased when they go."""

from __future__ import annotations

import uuid

import structlog
from django.db import transaction
from django.db.models import Case, F, QuerySet, Value, When
from django.db.models.functions import Now

from accounts import sealing
from accounts.models import ConnectedAccount, RenewedSecret
from accounts.providers import Provider, SecretRefused, read_secret
from controlplane.database.ids import uuid7
from controlplane.database.locks import lock_until_commit
from controlplane.errors import Fault, NotFound, ValidationFailed

log = structlog.get_logger(__name__)

DEFAULT_NAME = "default"


def connect_account(
    *, owner_user_id: str, provider: Provider, name: str | None, secret: str
) -> ConnectedAccount:
    """Return the owner's account of that provider and name, with this secret, active.

    Without a name it is called ``default``; a ``generic`` one has to have one.

    An account that is connected already keeps its id and gets the new secret. Raises
    ``ServiceUnavailable`` (``credentials-key-unset``), and ``ValidationFailed`` for a secret that
    does not have its provider's shape.
    """
    sealing.require_key()
    if name is None:
        name = "" if provider == Provider.GENERIC else DEFAULT_NAME
    try:
        given = read_secret(provider, name, secret)
    except SecretRefused as exc:
        fault = Fault(f"{exc.member}-refused", str(exc), pointer=f"/{exc.member}")
        raise ValidationFailed([fault]) from None  # the cause may hold the secret
    with transaction.atomic():
        # Two first connections of one name must not meet at the constraint.
        lock_until_commit(f"connected-account:{owner_user_id}:{provider}:{name}")
        mine = ConnectedAccount.objects.owned_by(owner_user_id).kept()
        account = mine.select_for_update().filter(provider=provider, name=name).first()
        if account is None:
            account = ConnectedAccount(
                id=uuid7(), owner_user_id=owner_user_id, provider=provider, name=name, generation=0
            )
        account.generation += 1
        account.kind = given.kind
        account.metadata = dict(given.metadata)
        account.status = ConnectedAccount.Status.ACTIVE
        account.sealed = sealing.seal(given.value, place_of(account))
        account.save()
        account.renewed_secrets.all().delete()
    log.info("account_connected", account=str(account.pk), provider=provider)
    return account


def list_accounts(*, owner_user_id: str) -> QuerySet[ConnectedAccount]:
    """Return an owner's accounts that were not deleted, without their secrets."""
    return ConnectedAccount.objects.owned_by(owner_user_id).kept().defer("sealed")


def delete_account(account_id: uuid.UUID, *, owner_user_id: str | None) -> ConnectedAccount:
    """Erase an account's secret and return what is left of it; its name is free again.

    Raises ``NotFound`` (``connected-account-not-found``) for a foreign, an unknown and a deleted
    one alike.
    """
    _change(
        account_id,
        owner_user_id,
        status=Value(ConnectedAccount.Status.ARCHIVED),
        sealed=Value(None),
    )
    log.info("account_deleted", account=str(account_id))
    return ConnectedAccount.objects.get(pk=account_id)


def mark_account_invalid(account_id: uuid.UUID, *, owner_user_id: str | None) -> ConnectedAccount:
    """Mark an account as one that its provider refuses; nothing uses it until it is reconnected.

    Raises ``NotFound`` as :func:`delete_account` does. Marking it again changes nothing.
    """
    invalid = Value(ConnectedAccount.Status.INVALID)
    changed = When(status=ConnectedAccount.Status.ACTIVE, then=Now())
    _change(
        account_id, owner_user_id, status=invalid, updated_at=Case(changed, default=F("updated_at"))
    )
    log.info("account_marked_invalid", account=str(account_id))
    return ConnectedAccount.objects.get(pk=account_id)


def _change(account_id: uuid.UUID, owner_user_id: str | None, **values: Value | Case) -> None:
    rows = ConnectedAccount.objects.owned_by(owner_user_id).kept().filter(pk=account_id)
    with transaction.atomic():
        if not rows.update(**{"updated_at": Now(), **values}):
            raise account_not_found()
        RenewedSecret.objects.filter(account_id=account_id).delete()


def account_not_found() -> NotFound:
    """Return the error for an account that is unknown, deleted, or another owner's."""
    return NotFound("There is no such connected account.", code="connected-account-not-found")


def reveal(account: ConnectedAccount) -> str:
    """Return the secret of an account, for the worker that launches a workspace with it.

    Raises ``SealError`` when it was erased, or no key that is known opens it.
    """
    if account.sealed is None:
        raise sealing.SealError("The account's secret has been erased.")
    return sealing.unseal(bytes(account.sealed), place_of(account))


def reseal(account_id: uuid.UUID, *, dry_run: bool) -> bool:
    """Seal one account's secret under the present key; False when it is already, or is gone.

    Raises ``SealError`` when no key that is known opens it.
    """
    with transaction.atomic():
        account = ConnectedAccount.objects.kept().select_for_update().filter(pk=account_id).first()
        if account is None or account.sealed is None:
            return False
        if not dry_run:
            _reseal_renewed(account)
        sealed = bytes(account.sealed)
        if sealing.is_present(sealed, place_of(account)):
            return False
        secret = sealing.unseal(sealed, place_of(account))
        if not dry_run:
            account.sealed = sealing.seal(secret, place_of(account))
            account.save(update_fields=["sealed"])
    return True


def _reseal_renewed(account: ConnectedAccount) -> None:
    """Seal what workspaces have renewed under the present key; what no key opens goes."""
    for kept in account.renewed_secrets.all():
        place = place_of_renewed(account, kept.workspace_id)
        try:
            kept.sealed = sealing.seal(sealing.unseal(bytes(kept.sealed), place), place)
        except sealing.SealError:
            kept.delete()
        else:
            kept.save(update_fields=["sealed"])


def place_of(account: ConnectedAccount) -> sealing.Place:
    """Return where the account's seal belongs."""
    return sealing.Place(account.pk, account.owner_user_id)


def place_of_renewed(account: ConnectedAccount, workspace_id: uuid.UUID) -> sealing.Place:
    """Return where the seal belongs of what a workspace has renewed of the account."""
    return sealing.Place(account.pk, account.owner_user_id, workspace_id)
