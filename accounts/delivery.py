"""Opening the accounts of a workspace: by the worker that starts it, at the last moment.

What keeps an account from being delivered is told by a code, which becomes the job's ``errorCode``:

==============================  ===================================================================
``credentials-key-unset``       the worker has no ``SVC_CREDENTIALS_KEY``
``connected-account-gone``      the account was deleted, or is not the owner's
``connected-account-invalid``   it was marked as one that its provider refuses
``connected-account-mismatch``  it is another provider's than the workspace was to be given
``connected-account-unopened``  no key that the worker has opens it; it has to be connected again
``credentials-too-large``       all secrets together are more than a workspace is given
==============================  ===================================================================

No message has anything of a secret.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
from django.db import DatabaseError, InterfaceError
from django.db.models.functions import Now

from accounts import sealing
from accounts.models import ConnectedAccount
from accounts.providers import Provider, maskable
from accounts.renewal import secret_for
from accounts.resolution import Reference
from controlplane.errors import JobError, ServiceUnavailable

log = structlog.get_logger(__name__)

MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_ENVIRONMENT_BYTES = 256 * 1024
"""Of all variables together: every program of the workspace is started with them."""

KEY_UNSET = "credentials-key-unset"
GONE = "connected-account-gone"
INVALID = "connected-account-invalid"
MISMATCH = "connected-account-mismatch"
UNOPENED = "connected-account-unopened"
TOO_LARGE = "credentials-too-large"


class DeliveryError(JobError):
    """Accounts cannot be given to a workspace; see the codes in the module's docstring."""


@dataclass(frozen=True, slots=True)
class OpenedAccount:
    """An account with its secret in clear; nobody keeps one for longer than he needs it."""

    account_id: uuid.UUID
    provider: Provider
    name: str
    generation: int
    """Which connection of the account the secret is of."""
    secret: str = field(repr=False)


def open_accounts(
    references: Sequence[Reference],
    *,
    owner_user_id: str,
    workspace_id: uuid.UUID | None = None,
    leave_out: Callable[[Reference, DeliveryError], None] | None = None,
) -> Sequence[OpenedAccount]:
    """Return the accounts of a workspace, opened, in the order of ``references``.

    What this workspace has renewed of an account itself it is given again, whoever approved it.
    Raises ``DeliveryError`` for the first that cannot be given. With ``leave_out`` it is told
    instead, and the others are returned; only a missing key, and too much of everything, raise.
    """
    if not references:
        return []
    try:
        sealing.require_key()
    except ServiceUnavailable as exc:
        raise DeliveryError(
            KEY_UNSET,
            "The build worker has no credentials key, so it cannot open connected accounts.",
        ) from exc
    mine = ConnectedAccount.objects.owned_by(owner_user_id)
    accounts = mine.in_bulk([reference.account_id for reference in references])
    opened = []
    for reference in references:
        try:
            opened.append(_open(reference, accounts.get(reference.account_id), workspace_id))
        except DeliveryError as exc:
            if leave_out is None:
                raise
            leave_out(reference, exc)
    variables = sum(
        len(account.secret.encode()) for account in opened if account.provider == Provider.GENERIC
    )
    if variables > MAX_ENVIRONMENT_BYTES:
        raise DeliveryError(
            TOO_LARGE,
            f"The variables of the generic accounts have {variables} bytes in total; a workspace "
            f"gets at most {MAX_ENVIRONMENT_BYTES}.",
        )
    return opened


def _open(
    reference: Reference, account: ConnectedAccount | None, workspace_id: uuid.UUID | None
) -> OpenedAccount:
    if account is None or account.status == ConnectedAccount.Status.ARCHIVED:
        raise DeliveryError(
            GONE,
            f"The {reference.provider} account {reference.account_id} was deleted: start the "
            "workspace again with another one.",
        )
    called = f"The {account.provider} account “{account.name}”"
    if account.status != ConnectedAccount.Status.ACTIVE:
        raise DeliveryError(INVALID, f"{called} is marked invalid: connect it again.")
    if account.provider != reference.provider:
        raise DeliveryError(
            MISMATCH, f"{called} was to be given as one of {reference.provider}: name it again."
        )
    try:
        secret = secret_for(account, workspace_id)
    except sealing.SealError as exc:
        raise DeliveryError(
            UNOPENED,
            f"{called} cannot be opened with the build worker's key: connect it again, or ask the "
            "operator to check the key.",
        ) from exc
    return OpenedAccount(
        account.pk, Provider(account.provider), account.name, account.generation, secret
    )


def document(opened: Sequence[OpenedAccount], *, github_host: str = "github.com") -> bytes:
    """Return what the workspace's agent is given, as ``RuntimeAdapter.deliver_credentials`` says.

    ``github_host`` is where git may show the token of a ``github`` account. Raises
    ``DeliveryError`` (``credentials-too-large``).
    """
    accounts = [
        {
            "id": str(account.account_id),
            "provider": account.provider.value,
            "name": account.name,
            "secret": account.secret,
            **({"host": github_host} if account.provider == Provider.GITHUB else {}),
        }
        for account in opened
    ]
    content = json.dumps({"version": 1, "accounts": accounts}).encode()
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DeliveryError(
            TOO_LARGE,
            f"The secrets of all accounts have {len(content)} bytes in total; a workspace gets "
            f"at most {MAX_DOCUMENT_BYTES}.",
        )
    return content


def masks(opened: Sequence[OpenedAccount]) -> Sequence[str]:
    """Return every text that must not be seen of these accounts."""
    return [text for account in opened for text in maskable(account.provider, account.secret)]


def stamp_used(opened: Sequence[OpenedAccount]) -> None:
    """Write that the accounts were used just now; a database that will not is no obstacle."""
    used = ConnectedAccount.objects.filter(pk__in=[account.account_id for account in opened])
    try:
        used.update(last_used_at=Now())
    except (DatabaseError, InterfaceError) as exc:
        log.warning("account_use_not_stamped", reason=type(exc).__name__)
