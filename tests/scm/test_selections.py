"""Selections: what they mean when they are made, and what they open when they are fetched."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from controlplane.errors import ControlPlaneError
from scm.git_urls import SourceError
from scm.models import Installation, InstallationGrant, InstallationRepository
from scm.selections import ConcreteSource, resolve_selection, source_token
from scm.services import note_deleted, sync_installation
from tests.conftest import OWNER, Api
from tests.registries.fake_registry import answer
from tests.scm.fake_provider import FakeProvider
from tests.scm.installed import STRANGER, grant, imported, repository_of

pytestmark = pytest.mark.django_db
POINTER = "/sourceSelection"


@pytest.fixture
def installation(api: Api, provider: FakeProvider) -> Installation:
    """An installation of the owner with two repositories."""
    provider.install("app", "tool")
    return imported(api)


def selection(installation: Installation, name: str = "app", **members: Any) -> dict[str, Any]:
    """Return the selection of a repository as a request has it."""
    return {
        "provider": "github",
        "installation_id": str(installation.pk),
        "installation_repository_id": str(repository_of(installation, name).pk),
        **members,
    }


def resolve(given: dict[str, Any], owner: str = OWNER) -> ConcreteSource:
    return resolve_selection(given, owner_user_id=owner, pointer=POINTER)


def refusal(given: dict[str, Any], owner: str = OWNER) -> tuple[int, str, dict[str, str]]:
    """Return status and code of the error, and the code of each fault by its place."""
    with pytest.raises(ControlPlaneError) as caught:
        resolve(given, owner)
    error = caught.value
    return error.status, error.code, {fault.pointer: fault.code for fault in error.errors}


def test_a_selection_means_the_default_branch_at_the_providers_web_address(
    installation: Installation, provider: FakeProvider
) -> None:
    row = repository_of(installation, "app")
    assert resolve(selection(installation)) == ConcreteSource(
        f"http://{provider.host}/octo-org/app.git", "main", row.pk
    )


@pytest.mark.parametrize("ref", ["topic", "refs/tags/v1", "feature/ü", "a" * 40])
def test_a_selection_may_name_another_ref(installation: Installation, ref: str) -> None:
    assert resolve(selection(installation, ref=ref)).ref == ref


@pytest.mark.parametrize("ref", ["-f", "a..b", "a b", "a~1", "@", "x.lock", "--upload-pack=x"])
def test_a_ref_that_is_none_is_refused(installation: Installation, ref: str) -> None:
    assert refusal(selection(installation, ref=ref)) == (
        400,
        "validation-failed",
        {f"{POINTER}/ref": "invalid-format"},
    )


def test_a_public_provider_is_cloned_from_its_web_address(
    installation: Installation, settings: Settings
) -> None:
    settings.SCM_API_BASE_URL = "https://api.github.com"
    assert resolve(selection(installation)).url == "https://github.com/octo-org/app.git"


def test_without_an_app_that_is_said_first(installation: Installation, settings: Settings) -> None:
    given = selection(installation, installation_id="nonsense")
    settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""
    assert refusal(given) == (503, "scm-app-unconfigured", {POINTER: "scm-app-unconfigured"})


@pytest.mark.parametrize("wanted", ["nonsense", str(uuid.UUID(int=10)), "7", "\x00"])
def test_an_installation_that_is_not_there(installation: Installation, wanted: str) -> None:
    assert refusal(selection(installation, installation_id=wanted)) == (
        404,
        "installation-not-found",
        {f"{POINTER}/installationId": "not-found"},
    )


@pytest.mark.parametrize("wanted", ["nonsense", str(uuid.UUID(int=10)), "700"])
def test_a_repository_that_is_not_there(installation: Installation, wanted: str) -> None:
    assert refusal(selection(installation, installation_repository_id=wanted)) == (
        404,
        "source-repository-not-found",
        {f"{POINTER}/installationRepositoryId": "not-found"},
    )


def test_a_repository_that_was_removed_is_not_there(
    installation: Installation, provider: FakeProvider
) -> None:
    given = selection(installation)
    provider.installations[7].repositories.pop(0)
    sync_installation(installation.pk, owner_user_id=OWNER)
    assert refusal(given)[:2] == (404, "source-repository-not-found")


def test_a_stranger_may_not_select(installation: Installation) -> None:
    given = selection(installation)
    assert refusal(given, STRANGER) == (
        404,
        "installation-not-found",
        {f"{POINTER}/installationId": "not-found"},
    )
    grant(installation, STRANGER)
    assert resolve(given, STRANGER).ref == "main"


@pytest.mark.parametrize("status", ["suspended", "deleted"])
def test_what_is_not_active_gives_nothing(installation: Installation, status: str) -> None:
    Installation.objects.update(status=status)
    assert refusal(selection(installation)) == (
        403,
        "installation-not-active",
        {f"{POINTER}/installationId": "not-active"},
    )


def test_a_repository_of_another_installation_is_a_mistake_for_its_owner_and_unknown_to_others(
    api: Api, installation: Installation, provider: FakeProvider
) -> None:
    provider.install("secret", id=8)
    other = imported(api, 8, owner=STRANGER)
    foreign = str(repository_of(other, "secret").pk)
    given = selection(installation, installation_repository_id=foreign)
    assert refusal(given)[:2] == (404, "source-repository-not-found")
    grant(other, OWNER)
    assert refusal(given) == (
        400,
        "validation-failed",
        {f"{POINTER}/installationRepositoryId": "installation-mismatch"},
    )


def test_a_token_reads_the_selected_repository_and_nothing_else(
    installation: Installation, provider: FakeProvider
) -> None:
    row = repository_of(installation, "app")
    with capture_logs() as logs:
        given = source_token(row.pk, owner_user_id=OWNER)
    issued = provider.issued[-1]
    assert issued.token == given.credential.secret
    assert issued.permissions == {"contents": "read", "metadata": "read"}
    assert issued.repository_ids == frozenset({700})
    assert provider.allows(given.credential.secret, "octo-org/app")
    assert not provider.allows(given.credential.secret, "octo-org/tool")
    assert given.url == f"http://{provider.host}/octo-org/app.git"
    assert given.credential.origin == f"http://{provider.host}"
    assert given.credential.name == "x-access-token"
    assert given.credential.secret not in repr(given) + repr(logs)


def test_each_fetch_gets_a_token_of_its_own(
    installation: Installation, provider: FakeProvider
) -> None:
    row = repository_of(installation, "app")
    tokens = {source_token(row.pk, owner_user_id=OWNER).credential.secret for _ in range(3)}
    assert len(tokens) == 3


def test_a_token_is_for_the_name_that_the_repository_has_by_then(
    installation: Installation, provider: FakeProvider
) -> None:
    concrete = resolve(selection(installation))
    provider.installations[7].repositories[0].name = "service"
    sync_installation(installation.pk, owner_user_id=OWNER)
    given = source_token(concrete.installation_repository_id, owner_user_id=OWNER)
    assert given.url.endswith("/octo-org/service.git")


def no_token(row: InstallationRepository, owner: str = OWNER) -> str:
    """Return the code of the failure to get a token, which tells nothing internal."""
    with pytest.raises(SourceError) as caught:
        source_token(row.pk, owner_user_id=owner)
    for hidden in ("127.0.0.1", "ghs_", "hunter2", "PRIVATE KEY"):
        assert hidden not in caught.value.message
    return caught.value.code


def test_what_changed_since_the_selection_counts_when_it_is_fetched(
    api: Api, installation: Installation, provider: FakeProvider, settings: Settings
) -> None:
    row = repository_of(installation, "app")
    asked = len(provider.requests)
    assert no_token(row, STRANGER) == "source-installation-not-granted"
    InstallationGrant.objects.all().delete()
    assert no_token(row) == "source-installation-not-granted"
    grant(installation, OWNER)
    note_deleted(7, as_of=installation.observed_at)
    assert no_token(row) == "source-installation-not-active"
    InstallationRepository.objects.update(removed_at=row.synced_at)
    assert no_token(row) == "source-repository-unavailable"
    settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""
    assert no_token(row) == "source-app-unconfigured"
    assert len(provider.requests) == asked


def test_what_we_have_not_heard_of_yet_is_told_by_the_provider(
    installation: Installation, provider: FakeProvider
) -> None:
    row = repository_of(installation, "app")
    app = provider.installations[7].repositories.pop(0)
    assert no_token(row) == "source-repository-unavailable"
    provider.installations[7].repositories.append(app)
    provider.installations[7].permissions = {"metadata": "read"}
    assert no_token(row) == "source-repository-unavailable"
    provider.installations[7].suspended_at = "2026-01-02T03:04:05Z"
    assert no_token(row) == "source-installation-not-active"
    provider.installations.clear()
    assert no_token(row) == "source-installation-not-active"


@pytest.mark.parametrize("status", [401, 403, 429, 500])
def test_a_provider_that_fails_gives_no_token(
    installation: Installation, provider: FakeProvider, status: int
) -> None:
    provider.override = lambda asked: answer(status, b"hunter2")
    assert no_token(repository_of(installation, "app")) == "source-provider-failed"


def test_a_repository_id_that_nobody_made_gives_no_token(installation: Installation) -> None:
    row = InstallationRepository(pk=uuid.uuid4())
    assert no_token(row) == "source-repository-unavailable"
