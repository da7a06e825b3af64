"""Reading what the provider answered: nothing is believed before its shape has been looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from controlplane.http.serializers import has_control_character
from scm.git_urls import is_ref
from scm.models import BRANCH_MAX_LENGTH, LOGIN_MAX_LENGTH, REPOSITORY_NAME_MAX_LENGTH, Installation
from scm.provider.errors import ProviderError, Reason

_LARGEST_ID = 2**63 - 1
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]+")
"""Of accounts with repositories, and of repositories: nothing that means something in a URL."""
_PERMISSION = re.compile(r"[a-z][a-z0-9_]{0,99}")
_LEVELS = ("read", "write", "admin")
_TOKEN = re.compile(r"[\x21-\x7e]{8,2048}")


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """What the provider says of an installation."""

    external_id: int
    account_id: int
    account_login: str
    account_type: Installation.AccountType
    repository_selection: Installation.RepositorySelection
    permissions: dict[str, str]
    suspended_at: datetime | None


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """What the provider says of a repository."""

    external_id: int
    owner_login: str
    name: str
    default_branch: str
    is_private: bool
    is_archived: bool
    pushed_at: datetime | None

    @property
    def full_name(self) -> str:
        """The owner's name and the repository's."""
        return f"{self.owner_login}/{self.name}"


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """A token as it was given, and what the provider says it can do."""

    token: str = field(repr=False)
    expires_at: datetime
    permissions: dict[str, str] | None
    repository_ids: set[int] | None


def malformed(what: str) -> ProviderError:
    """Return the error for an answer that cannot be right: ``what`` completes the sentence."""
    return ProviderError(f"The source-hosting provider answered with {what}.", Reason.MALFORMED)


def object_of(content: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in ``content``."""
    try:
        document = json.loads(content.decode())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise malformed(f"{what} that is not a JSON object")
    return document


def read_installation(document: object) -> InstallationFacts:
    """Return the facts of an installation, from an answer or from a webhook's payload.

    Raises :class:`ProviderError` (``malformed``).
    """
    what = "an installation"
    given = _object(document, what)
    account = _object(given.get("account"), f"{what}'s account")
    # Accounts of enterprises have a slug for a login.
    login = account.get("login", account.get("slug"))
    if (
        not isinstance(login, str)
        or not 0 < len(login) <= LOGIN_MAX_LENGTH
        or has_control_character(login)
    ):
        raise malformed(f"{what} whose account has no name")
    selection = given.get("repository_selection")
    if selection not in Installation.RepositorySelection.values:
        raise malformed(f"{what} without a selection of repositories")
    organization = account.get("type") == "Organization"
    permissions = given.get("permissions")
    return InstallationFacts(
        external_id=_id(given.get("id"), what),
        account_id=_id(account.get("id"), f"{what}'s account"),
        account_login=login,
        account_type=Installation.AccountType.ORGANIZATION
        if organization
        else Installation.AccountType.USER,
        repository_selection=Installation.RepositorySelection(selection),
        permissions=_permissions({} if permissions is None else permissions, what),
        suspended_at=_moment(given.get("suspended_at"), what),
    )


def read_repository(document: object) -> RepositoryFacts:
    """Return the facts of a repository; raises :class:`ProviderError` (``malformed``)."""
    what = "a repository"
    given = _object(document, what)
    owner = _object(given.get("owner"), f"{what}'s owner").get("login")
    name, branch = given.get("name"), given.get("default_branch")
    private, archived = given.get("private"), given.get("archived")
    if not _is_name(owner, LOGIN_MAX_LENGTH) or not _is_name(name, REPOSITORY_NAME_MAX_LENGTH):
        raise malformed(f"{what} with an invalid name")
    assert isinstance(owner, str)
    assert isinstance(name, str)
    if not isinstance(branch, str) or len(branch) > BRANCH_MAX_LENGTH or not is_ref(branch):
        raise malformed(f"{what} with an invalid default branch")
    if not isinstance(private, bool) or not isinstance(archived, bool):
        raise malformed(f"{what} that does not say whether it is private and archived")
    return RepositoryFacts(
        external_id=_id(given.get("id"), what),
        owner_login=owner,
        name=name,
        default_branch=branch,
        is_private=private,
        is_archived=archived,
        pushed_at=_moment(given.get("pushed_at"), what),
    )


def read_page(document: Mapping[str, Any]) -> tuple[list[RepositoryFacts], int]:
    """Return one page of a list of repositories, and how many there are on all pages."""
    listed, total = document.get("repositories"), document.get("total_count")
    if not isinstance(listed, list):
        raise malformed("an invalid list of repositories")
    if not isinstance(total, int) or isinstance(total, bool) or total < 0:
        raise malformed("a list of repositories that does not say how many there are")
    return [read_repository(entry) for entry in listed], total


def read_token(document: Mapping[str, Any]) -> TokenAnswer:
    """Return the token that was given."""
    what = "a token"
    token, given = document.get("token"), document.get("permissions")
    repositories = document.get("repositories")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise malformed("an invalid token")
    expires_at = _moment(document.get("expires_at"), what)
    if expires_at is None or expires_at <= datetime.now(UTC):
        raise malformed(f"{what} that has expired")
    if not isinstance(repositories, list | None):
        raise malformed(f"{what} with repositories that are no list")
    return TokenAnswer(
        token,
        expires_at,
        None if given is None else _permissions(given, what),
        None
        if repositories is None
        else {_id(_object(entry, what).get("id"), what) for entry in repositories},
    )


def exceeds(given: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Tell whether permissions allow more than was asked for; metadata may always be read."""
    allowed = {"metadata": "read", **asked}
    return any(
        name not in allowed or _LEVELS.index(level) > _LEVELS.index(allowed[name])
        for name, level in given.items()
    )


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(f"{what} that is not a JSON object")
    return value


def _id(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST_ID:
        raise malformed(f"{what} without an id")
    return value


def _is_name(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and bool(_NAME.fullmatch(value))


def _permissions(value: object, what: str) -> dict[str, str]:
    given = _object(value, f"{what}'s permissions")
    if not all(_PERMISSION.fullmatch(name) for name in given) or not all(
        isinstance(level, str) and level in _LEVELS for level in given.values()
    ):
        raise malformed(f"{what} with invalid permissions")
    return dict(given)


def _moment(value: object, what: str) -> datetime | None:
    """Return an instant, which webhooks also write as seconds of the epoch."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            moment = parse_datetime(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise malformed(f"{what} with an invalid time")
