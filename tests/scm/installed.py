"""Installations as the API sees them: importing, syncing and reading them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from scm.models import Installation, InstallationGrant, InstallationRepository
from scm.provider import read_installation
from scm.services import note_deleted, record_installation
from tests.conftest import OWNER, Answer, Api
from tests.scm.fake_provider import FakeProvider

PATH = "/v1/scm/installations"
STRANGER = "usr_stranger"


def import_(
    api: Api, external_id: object = "7", *, owner: str = OWNER, expect: int = 200
) -> Answer:
    """Import an installation."""
    body = {"userId": owner, "externalInstallationId": external_id}
    return api.post(f"{PATH}/import", body, expect=expect)


def imported(api: Api, external_id: int = 7, *, owner: str = OWNER) -> Installation:
    """Import an installation and return its row."""
    import_(api, str(external_id), owner=owner)
    return Installation.objects.get(external_id=external_id)


def sync(api: Api, installation: Any, *, owner: str = OWNER, expect: int = 200) -> Answer:
    """Sync an installation."""
    return api.post(f"{PATH}/{installation.pk}/sync?userId={owner}", expect=expect)


def listed(api: Api, *, owner: str = OWNER, query: str = "") -> list[dict[str, Any]]:
    """Return the installations of an owner."""
    items: list[dict[str, Any]] = api.get(f"{PATH}?userId={owner}{query}").body["items"]
    return items


def repositories(
    api: Api, installation: Any, query: str = "", *, owner: str = OWNER, expect: int = 200
) -> Answer:
    """List the repositories of an installation."""
    path = f"{PATH}/{installation.pk}/repositories?userId={owner}{query}"
    return api.get(path, expect=expect)


def names(answer: Answer) -> list[str]:
    """Return the names of listed repositories, sorted."""
    return sorted(item["name"] for item in answer.body["items"])


def grant(installation: Installation, owner: str) -> InstallationGrant:
    """Grant an installation, as an operator does."""
    return InstallationGrant.objects.create(installation=installation, owner_user_id=owner)


def repository_of(installation: Installation, name: str) -> InstallationRepository:
    """Return the row of a repository."""
    return InstallationRepository.objects.get(installation=installation, name=name)


def say(provider: FakeProvider, state: str, moment: datetime) -> None:
    """Record that the installation was in ``state`` at ``moment``."""
    if state == "deleted":
        note_deleted(7, as_of=moment)
        return
    shown = provider.installations[7].shown()
    shown["suspended_at"] = moment.isoformat() if state == "suspended" else None
    record_installation(read_installation(shown), as_of=moment)
