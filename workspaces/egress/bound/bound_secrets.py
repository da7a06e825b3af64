"""The secrets of bound accounts, opened for the requests that they are put into."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from accounts.delivery import DeliveryError, OpenedAccount, open_accounts, stamp_used
from accounts.models import ConnectedAccount
from accounts.providers import Provider
from accounts.resolution import Reference

KEPT_SECONDS = 1.0
"""How long a secret that was replaced is still used."""
MAX_KEPT = 1024
STAMPED_EVERY = 60.0

log = structlog.get_logger(__name__)


class NoSecret(Exception):
    """The secret of an account cannot be had; the text says why, and nothing of it."""


class BoundSecrets:
    """Opens secrets, and keeps each for a second."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, UUID], tuple[float, str]] = OrderedDict()
        self._stamped: dict[UUID, float] = {}
        self._opening: dict[tuple[str, UUID], asyncio.Task[str]] = {}

    async def secret_of(self, owner_user_id: str, account_id: UUID) -> str:
        """Return the secret of an owner's account as it is now; raises ``NoSecret``."""
        key = (owner_user_id, account_id)
        kept = self._kept.get(key)
        now = time.monotonic()
        if kept is not None and now - kept[0] < KEPT_SECONDS:
            return kept[1]
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._read(owner_user_id, account_id))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key))
        # Those who come together wait for one: its threads are for all workspaces.
        return await asyncio.shield(opening)

    async def _read(self, owner_user_id: str, account_id: UUID) -> str:
        now = time.monotonic()
        self._forget(now)
        stamp = now - self._stamped.get(account_id, -STAMPED_EVERY) >= STAMPED_EVERY
        secret = await asyncio.to_thread(_open, owner_user_id, account_id, stamp)
        if stamp:
            self._stamped[account_id] = now
        self._kept[owner_user_id, account_id] = (now, secret)
        return secret

    def _forget(self, now: float) -> None:
        """Keep no secret longer than it is used, and no time that tells nothing any more."""
        for key in [key for key, (since, _) in self._kept.items() if now - since >= KEPT_SECONDS]:
            del self._kept[key]
        while len(self._kept) >= MAX_KEPT:
            self._kept.popitem(last=False)
        if len(self._stamped) >= MAX_KEPT:
            self._stamped.clear()


def _open(owner_user_id: str, account_id: UUID, stamp: bool) -> str:
    close_old_connections()
    try:
        (opened,) = _opened(owner_user_id, account_id)
        if stamp:
            stamp_used([opened])
    except DeliveryError as error:
        raise NoSecret(error.message) from error
    except (DatabaseError, InterfaceError) as error:
        log.warning("bound_secret_not_read", reason=type(error).__name__)
        raise NoSecret("The account cannot be read: the database does not answer.") from error
    finally:
        close_old_connections()
    return opened.secret


def _opened(owner_user_id: str, account_id: UUID) -> list[OpenedAccount]:
    mine = ConnectedAccount.objects.owned_by(owner_user_id)
    provider = mine.filter(pk=account_id).values_list("provider", flat=True).first()
    reference = Reference(account_id, Provider(provider or Provider.GENERIC))
    return list(open_accounts([reference], owner_user_id=owner_user_id))
