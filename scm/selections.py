"""Selections of a repository: which source they mean, and a token to fetch it with.

A selection is resolved when a sandbox is asked for, and the token is asked for when the worker
fetches. Whatever changed in between counts: each time the installation has to be active and granted
to the owner, and has to show the repository, under whatever name it has by then.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings

from controlplane.errors import Fault, NotFound, ValidationFailed
from scm.app_connection import is_app_configured, open_provider, require_app
from scm.git import GitCredential
from scm.git_urls import SourceError, is_ref
from scm.models import Installation, InstallationRepository
from scm.provider import (
    InstallationGoneError,
    InstallationSuspendedError,
    ProviderError,
    TokenRefusedError,
    clone_base,
    clone_url,
)
from scm.services import (
    get_installation,
    installation_not_active,
    installation_not_found,
)

log = structlog.get_logger(__name__)

TOKEN_USER = "x-access-token"  # noqa: S105
"""The account that the provider's git servers want beside an installation token."""


@dataclass(frozen=True, slots=True)
class ConcreteSource:
    """What a selection means now."""

    url: str
    ref: str
    installation_repository_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class SourceToken:
    """A token that reads the repository at ``url`` until ``expires_at``."""

    url: str
    credential: GitCredential
    expires_at: datetime


def resolve_selection(
    selection: Mapping[str, Any], *, owner_user_id: str, pointer: str
) -> ConcreteSource:
    """Return the source that a selection means; ``pointer`` is where it stands in the body.

    ``ref`` is the selection's, else the default branch as last synced. Raises
    ``ServiceUnavailable`` (``scm-app-unconfigured``), ``NotFound`` (``installation-not-found``,
    ``source-repository-not-found``), ``Forbidden`` (``installation-not-active``),
    ``ValidationFailed`` for a repository of another installation and for a malformed ref.
    """
    require_app(
        Fault("scm-app-unconfigured", "Name the repository's URL in spec.sources instead.", pointer)
    )
    at_installation = f"{pointer}/installationId"
    wanted = _id(selection["installation_id"])
    if wanted is None:
        raise installation_not_found(_unknown(at_installation))
    try:
        installation = get_installation(wanted, owner_user_id=owner_user_id)
    except NotFound:
        raise installation_not_found(_unknown(at_installation)) from None
    if installation.status != Installation.Status.ACTIVE:
        fault = Fault("not-active", f"This installation is {installation.status}.", at_installation)
        raise installation_not_active(fault)
    ref = selection.get("ref")
    if ref is not None and not is_ref(ref):
        raise ValidationFailed(
            [Fault("invalid-format", "This is not a branch, a tag or a commit.", f"{pointer}/ref")]
        )
    found = _repository_of(installation, selection, owner_user_id, pointer)
    return ConcreteSource(
        clone_url(settings.SCM_API_BASE_URL, found.full_name), ref or found.default_branch, found.pk
    )


def source_token(installation_repository_id: uuid.UUID, *, owner_user_id: str) -> SourceToken:
    """Return a new token to read this repository with, and its address as of now.

    Raises :class:`SourceError`: ``source-app-unconfigured``, ``source-repository-unavailable``,
    ``source-installation-not-active``, ``source-installation-not-granted``, or
    ``source-provider-failed`` when the provider fails.
    """
    if not is_app_configured():
        raise SourceError(
            "source-app-unconfigured",
            "The source is a selected repository, but no provider app is configured to read it "
            "with.",
        )
    rows = InstallationRepository.objects.present().select_related("installation", "repository")
    found = rows.filter(pk=installation_repository_id).first()
    if found is None:
        raise _unavailable()
    installation = found.installation
    if not installation.grants.filter(owner_user_id=owner_user_id).exists():
        raise SourceError(
            "source-installation-not-granted",
            "The owner may no longer use the installation of the selected repository.",
        )
    if installation.status != Installation.Status.ACTIVE:
        raise _inactive()
    try:
        with open_provider() as provider:
            given = provider.installation_token(
                installation.external_id, repository_ids=[found.repository.external_id]
            )
    except (InstallationGoneError, InstallationSuspendedError):
        raise _inactive() from None
    except TokenRefusedError:
        raise _unavailable() from None
    except ProviderError as error:
        raise SourceError("source-provider-failed", error.detail) from None
    log.info("source_token_made", installation_repository=str(found.pk))
    return SourceToken(
        url=clone_url(settings.SCM_API_BASE_URL, found.full_name),
        credential=GitCredential(clone_base(settings.SCM_API_BASE_URL), given.token, TOKEN_USER),
        expires_at=given.expires_at,
    )


def _repository_of(
    installation: Installation, selection: Mapping[str, Any], owner_user_id: str, pointer: str
) -> InstallationRepository:
    place = f"{pointer}/installationRepositoryId"
    wanted = _id(selection["installation_repository_id"])
    rows = InstallationRepository.objects.present()
    found = rows.filter(pk=wanted).first() if wanted else None
    if found is not None and found.installation_id == installation.pk:
        return found
    if found is not None and found.installation.grants.filter(owner_user_id=owner_user_id).exists():
        detail = "This repository belongs to another installation of yours."
        raise ValidationFailed([Fault("installation-mismatch", detail, place)])
    raise NotFound(
        "The installation shows no such repository.",
        code="source-repository-not-found",
        errors=[_unknown(place)],
    )


def _id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _unknown(pointer: str) -> Fault:
    return Fault("not-found", "It does not exist.", pointer)


def _inactive() -> SourceError:
    return SourceError(
        "source-installation-not-active",
        "The installation of the selected repository is suspended or was removed at the provider.",
    )


def _unavailable() -> SourceError:
    return SourceError(
        "source-repository-unavailable",
        "The installation no longer lists the selected repository, or may not read it.",
    )
