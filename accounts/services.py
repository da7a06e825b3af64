"""SSH keys: registering, reading and deleting them."""

from __future__ import annotations

import base64
import uuid

import structlog
from django.db import transaction
from django.db.models import QuerySet

from accounts.models import NAME_MAX_LENGTH, SshKey
from accounts.public_keys import PublicKey, fingerprint_of
from controlplane.database.locks import lock_until_commit
from controlplane.errors import Conflict, NotFound

log = structlog.get_logger(__name__)

FINGERPRINT_SHOWN = 8
INVISIBLE = " \u200c\u200d"


def register_ssh_key(*, owner_user_id: str, key: PublicKey, name: str | None) -> SshKey:
    """Return the owner's active row of ``key``, made or revived where there was none.

    A key that is active already is returned as it is; a deleted one gets the new name and keeps
    its id and age. Without a name it is called by its comment, or by algorithm and fingerprint.

    Raises ``Conflict`` (``ssh-key-taken``) when another owner has it.
    """
    with transaction.atomic():
        lock_until_commit(f"ssh-key:{key.fingerprint}")
        rows = list(SshKey.objects.select_for_update().filter(fingerprint=key.fingerprint))
        own = next((row for row in rows if row.owner_user_id == owner_user_id), None)
        if own is not None and own.deleted_at is None:
            return own
        if any(row.deleted_at is None for row in rows):
            raise Conflict(
                "This key is registered by another owner, who has to delete it first.",
                code="ssh-key-taken",
            )
        row = own or SshKey(owner_user_id=owner_user_id, fingerprint=key.fingerprint)
        row.name = name or _name_of(key)
        row.algorithm, row.public_key, row.deleted_at = key.algorithm, key.line, None
        row.save()
    log.info("ssh_key_registered", ssh_key=str(row.pk), fingerprint=row.fingerprint)
    return row


def list_ssh_keys(*, owner_user_id: str) -> QuerySet[SshKey]:
    """Return an owner's active keys."""
    return SshKey.objects.active().owned_by(owner_user_id)


def _name_of(key: PublicKey) -> str:
    comment = " ".join(key.comment.split())[:NAME_MAX_LENGTH].strip(INVISIBLE)
    digest = key.fingerprint.partition(":")[2]
    return comment or f"{key.algorithm} {digest[:FINGERPRINT_SHOWN]}"


def delete_ssh_key(ssh_key_id: uuid.UUID, *, owner_user_id: str | None) -> SshKey:
    """Delete an active key and return it; it opens nothing from now on.

    Raises ``NotFound`` (``ssh-key-not-found``) for a foreign, an unknown and a deleted one alike.
    """
    if not SshKey.objects.owned_by(owner_user_id).filter(pk=ssh_key_id).revoke():
        raise NotFound("There is no such SSH key.", code="ssh-key-not-found")
    log.info("ssh_key_deleted", ssh_key=str(ssh_key_id))
    return SshKey.objects.get(pk=ssh_key_id)


def resolve_principal(public_key_base64: str) -> SshKey:
    """Return the active key with this blob; its owner is whom the gateway has before it.

    The text has to be base64. Raises ``NotFound`` (``ssh-key-not-found``) for an unknown key.
    """
    blob = base64.b64decode(public_key_base64, validate=True)
    key = SshKey.objects.active().filter(fingerprint=fingerprint_of(blob)).first()
    if key is None:
        raise NotFound("There is no such active SSH key.", code="ssh-key-not-found")
    return key
