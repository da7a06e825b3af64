"""What the provider's events mean to us: a reason to ask it, never a state to believe.

Events come late, twice and in any order. With the app's key at hand an event only says that
something changed, and the provider is asked how it is *now*; so the order of events counts for
nothing. Without a key the payload is all there is: what an installation is goes by the provider's
own time of it, and a repository can only be taken away.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.db.models.functions import Now
from django.utils.dateparse import parse_datetime

from controlplane.database.locks import advisory_lock
from scm.app_connection import is_app_configured
from scm.models import Installation, InstallationRepository, WebhookDelivery
from scm.provider import ProviderError, read_installation
from scm.services import note_deleted, record_installation, refresh_installation

LOCK_SECONDS = 3.0
"""How long an event waits for another one of its installation."""
_LARGEST_ID = 2**63 - 1
_LONGEST_TEXT = 1024
_MOST_ENTRIES = 200

_ANY = frozenset({""})
_MEANT: Mapping[str, frozenset[str]] = {
    "installation": _ANY,
    "installation_repositories": _ANY,
    "installation_target": _ANY,
    "repository": _ANY,
    "public": _ANY,
    "organization": frozenset({"renamed", "deleted"}),
}
"""The events after which an installation, or what it shows, may be different; ``_ANY``: whatever
their action. All others are none of our business: of users' authorizations we hold nothing."""

_INSTALLATION = ("id", "repository_selection", "suspended_at", "created_at", "updated_at")
_ACCOUNT = ("id", "login", "slug", "type")
_REPOSITORY = ("id", "full_name", "private", "archived", "updated_at")


class EventDeferredError(Exception):
    """Another event of the same installation is being acted upon; this one has to wait."""


def concerns_us(event: str, action: str) -> bool:
    """Whether an event may change what we keep."""
    actions = _MEANT.get(event, frozenset())
    return actions is _ANY or action in actions


def essence(event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a payload is kept: what may be acted upon, in a form that can be stored.

    The rest is other people's data, and up to 25 MB of it.
    """
    kept: dict[str, Any] = {}
    if action := _text(payload.get("action")):
        kept["action"] = action
    given = _members(payload.get("installation"), _INSTALLATION)
    if event in _MEANT and isinstance(payload.get("installation"), dict):
        if account := _members(payload["installation"].get("account"), _ACCOUNT):
            given["account"] = account
        permissions = payload["installation"].get("permissions")
        if isinstance(permissions, dict):
            given["permissions"] = _members(permissions, list(permissions)[:_MOST_ENTRIES])
    if given:
        kept["installation"] = given
    if event in _MEANT and (repository := _members(payload.get("repository"), _REPOSITORY)):
        kept["repository"] = repository
    removed = payload.get("repositories_removed")
    if event == "installation_repositories" and isinstance(removed, list):
        kept["repositories_removed"] = [
            number for entry in removed if (number := _id(entry)) is not None
        ]
    return kept


def installation_id(kept: Mapping[str, Any]) -> int | None:
    """Return the provider's id of the installation that an event is of."""
    return _id(kept.get("installation"))


def apply_event(delivery: WebhookDelivery, *, ask: bool = False) -> bool:
    """Bring what we keep up to date after an event; return whether it was one that concerns us.

    With ``ask`` the provider is asked although it was asked since the delivery came. Raises
    ``ProviderError`` when the provider cannot tell how it is now, and :class:`EventDeferredError`
    while another event of the installation is at work.
    """
    number = delivery.external_installation_id
    if number is None or not concerns_us(delivery.event, delivery.action):
        return False
    try:
        with advisory_lock(
            f"scm-installation-{number}", timeout=LOCK_SECONDS, cancelled=threading.Event()
        ):
            if not is_app_configured():
                return _take_from_payload(delivery, number)
            # Of a burst of events the first answer tells what the others would only repeat.
            if not ask and _is_known_since(number, delivery.received_at):
                return True
            return refresh_installation(number) is not None
    except TimeoutError:
        raise EventDeferredError from None


def _is_known_since(number: int, moment: datetime) -> bool:
    """Whether the provider was asked for everything after ``moment``, by the database's clock."""
    row = Installation.objects.filter(external_id=number, observed_at__gt=moment).first()
    if row is None:
        return False
    if row.status != Installation.Status.ACTIVE:
        return True
    return row.synced_at is not None and row.synced_at > moment


def _take_from_payload(delivery: WebhookDelivery, number: int) -> bool:
    """Believe a payload, because there is no key to ask with."""
    kept = delivery.payload
    if delivery.event == "installation":
        return _take_installation(delivery, number)
    if delivery.event == "installation_repositories":
        return _take_away(delivery, number, kept.get("repositories_removed", []))
    gone = delivery.event == "repository" and delivery.action in ("deleted", "transferred")
    repository = _id(kept.get("repository"))
    return gone and repository is not None and _take_away(delivery, number, [repository])


def _take_installation(delivery: WebhookDelivery, number: int) -> bool:
    told = delivery.payload.get("installation", {})
    moment = _moment(told.get("updated_at")) or _moment(told.get("created_at"))
    try:
        facts = read_installation(told)
    except ProviderError:
        return False
    if moment is None:
        return False
    if delivery.action == "suspend" and facts.suspended_at is None:
        facts = replace(facts, suspended_at=moment)
    # Of one that was deleted we remember that there was one: older news may still be on its way.
    record_installation(facts, as_of=max(moment, facts.suspended_at or moment))
    if delivery.action == "deleted":
        # That has no time of its own, and nothing comes after it: ids are not given twice.
        note_deleted(number, as_of=delivery.received_at)
    return True


def _take_away(delivery: WebhookDelivery, number: int, repositories: list[int]) -> bool:
    """Mark repositories as removed; only the provider itself can say that they are back.

    What it has listed since the event came is there, however late the event is acted upon.
    """
    InstallationRepository.objects.present().filter(
        installation__external_id=number,
        repository__external_id__in=repositories,
        synced_at__lt=delivery.received_at,
    ).update(removed_at=Now())
    return bool(repositories)


def _members(given: object, names: Any) -> dict[str, Any]:
    """Return the named members of an object, as far as they are simple values that fit."""
    if not isinstance(given, dict):
        return {}
    kept: dict[str, Any] = {}
    for name in names:
        value = given.get(name)
        if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= _LARGEST_ID):
            kept[_text(name)] = value
        elif isinstance(value, str) and len(value) <= _LONGEST_TEXT:
            kept[_text(name)] = _text(value)
    return kept


def _text(value: object) -> str:
    """Return a text that the database can hold; empty for what is none."""
    if not isinstance(value, str):
        return ""
    return value[:_LONGEST_TEXT].replace("\0", "").encode("utf-8", "replace").decode()


def _id(given: object) -> int | None:
    number = given.get("id") if isinstance(given, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= _LARGEST_ID:
        return None
    return number


def _moment(value: object) -> datetime | None:
    """Return a time that the provider writes as text or as seconds of the epoch."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        moment = parse_datetime(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None
    return moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
