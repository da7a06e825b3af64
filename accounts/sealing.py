"""Sealing what owners connect, under ``SVC_CREDENTIALS_KEY``; nothing opens by being loaded.

During a rotation two keys are known: the present one seals and opens, the previous one opens. A
key's id is the first byte of its SHA-256, so that a key keeps its id wherever it is configured.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from django.conf import settings

from controlplane.errors import ServiceUnavailable
from controlplane.security import crypto
from controlplane.security.crypto import SealError

__all__ = [
    "OtherPlace",
    "Place",
    "Rotated",
    "SealError",
    "is_present",
    "require_key",
    "rotated_too",
    "same_keys",
    "seal",
    "unseal",
]


class Place(NamedTuple):
    """The row that a sealed value belongs to; it opens nowhere else.

    ``workspace_id`` is that of the workspace that has renewed the account's secret.
    """

    account_id: uuid.UUID
    owner_user_id: str
    workspace_id: uuid.UUID | None = None

    @property
    def context(self) -> str:
        """The associated data of its seal."""
        if self.workspace_id is not None:
            return f"renewed-secret:{self.account_id}:{self.workspace_id}:{self.owner_user_id}"
        return f"connected-account:{self.account_id}:{self.owner_user_id}"


class OtherPlace(NamedTuple):
    """A row that is no account, by the words that its own app has for it."""

    context: str


AnyPlace: TypeAlias = Place | OtherPlace


class Rotated(NamedTuple):
    """How many were sealed under the present key now, were before, and open with no key."""

    resealed: int
    present: int
    lost: int


rotated_too: dict[str, Callable[[bool], Rotated]] = {}
"""What other apps seal, by what that is called, and what seals it anew; True: only counts."""


def require_key() -> bytes:
    """Return the present key; raises ``ServiceUnavailable`` (``credentials-key-unset``)."""
    if not settings.SVC_CREDENTIALS_KEY:
        raise ServiceUnavailable(
            "No credentials key is set on this installation: accounts cannot be connected.",
            code="credentials-key-unset",
        )
    return crypto.decode_key(settings.SVC_CREDENTIALS_KEY)


def seal(plaintext: str, place: AnyPlace) -> bytes:
    """Return ``plaintext`` sealed under the present key."""
    key = require_key()
    return crypto.seal(plaintext.encode(), key=key, key_id=_id(key), context=place.context)


def unseal(sealed: bytes, place: AnyPlace) -> str:
    """Return what was sealed; raises ``SealError`` when no key that is known opens it."""
    for key in _keys():
        try:
            opened = crypto.unseal(sealed, keys={_id(key): key}, context=place.context)
        except SealError:
            continue  # two keys may have the same id, so every one is tried
        return opened.decode()
    raise SealError("The sealed value cannot be opened.")


def is_present(sealed: bytes, place: AnyPlace) -> bool:
    """Tell whether the present key opens it."""
    key = require_key()
    try:
        crypto.unseal(sealed, keys={_id(key): key}, context=place.context)
    except SealError:
        return False
    return True


def same_keys() -> bool:
    """Tell whether the previous key is the present one, whatever their spelling."""
    keys = _keys()
    return len(keys) > len(set(keys))


def _keys() -> list[bytes]:
    given = (settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS)
    return [crypto.decode_key(text) for text in given if text]


def _id(key: bytes) -> int:
    return hashlib.sha256(key).digest()[0]
