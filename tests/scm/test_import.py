"""Importing installations: who holds them, and what the provider has to say of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections

from scm.models import Installation, InstallationGrant, InstallationRepository
from tests.conftest import OWNER, Api
from tests.registries.fake_registry import answer
from tests.scm.fake_provider import FakeProvider
from tests.scm.installed import (
    PATH,
    STRANGER,
    grant,
    import_,
    imported,
    listed,
    names,
    repositories,
)

pytestmark = pytest.mark.django_db


def holders() -> list[str]:
    return sorted(InstallationGrant.objects.values_list("owner_user_id", flat=True))


def test_an_import_answers_with_the_installation_and_counts_its_repositories(
    api: Api, provider: FakeProvider
) -> None:
    provider.install(*(f"r{number}" for number in range(123)))
    body = import_(api).body
    assert body["installation"] == listed(api)[0]
    assert body["syncedRepositoryCount"] == 123
    assert body["syncedAt"] == body["installation"]["lastSyncedAt"]
    assert provider.refusals == []
    assert all(issued.permissions == {"metadata": "read"} for issued in provider.issued)


def test_importing_again_reads_again_and_keeps_the_ids(api: Api, provider: FakeProvider) -> None:
    installed = provider.install("app")
    first = import_(api).body
    installed.login = "octo-renamed"
    second = import_(api).body
    assert second["installation"]["installationId"] == first["installation"]["installationId"]
    assert second["installation"]["accountLogin"] == "octo-renamed"
    assert second["syncedAt"] > first["syncedAt"]
    assert Installation.objects.count() == InstallationRepository.objects.count() == 1
    assert holders() == [OWNER]


def test_the_first_owner_to_import_holds_it_and_another_is_refused(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    installation = imported(api)
    asked = len(provider.requests)
    refused = import_(api, owner=STRANGER, expect=403)
    assert refused.body["code"] == "installation-not-granted"
    assert OWNER not in refused.content.decode()
    assert len(provider.requests) == asked
    assert listed(api, owner=STRANGER) == []
    assert holders() == [OWNER]
    assert Installation.objects.get().holder_user_id == OWNER
    repositories(api, installation, owner=STRANGER, expect=404)


def test_an_operators_grant_opens_it(api: Api, provider: FakeProvider) -> None:
    provider.install("app")
    installation = imported(api)
    given = grant(installation, STRANGER)
    assert import_(api, owner=STRANGER).body["syncedRepositoryCount"] == 1
    assert names(repositories(api, installation, owner=STRANGER)) == ["app"]
    given.delete()
    import_(api, owner=STRANGER, expect=403)
    assert Installation.objects.get().holder_user_id == OWNER


def test_a_grant_that_an_operator_took_away_does_not_come_back_by_importing(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    imported(api)
    InstallationGrant.objects.all().delete()
    assert import_(api, expect=403).body["code"] == "installation-not-granted"
    import_(api, owner=STRANGER, expect=403)
    assert holders() == []


def test_one_that_an_event_told_us_of_is_held_by_its_first_importer(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    imported(api)
    InstallationGrant.objects.all().delete()
    Installation.objects.update(holder_user_id="")
    import_(api, owner=STRANGER)
    assert holders() == [STRANGER]
    import_(api, expect=403)


@pytest.mark.django_db(transaction=True)
def test_of_many_owners_who_import_at_once_one_holds_it(provider: FakeProvider) -> None:
    provider.install("app", "tool")
    owners = [f"usr_{number}" for number in range(6)]
    together = Barrier(len(owners))

    def run(owner: str) -> int:
        try:
            together.wait()
            body = {"userId": owner, "externalInstallationId": "7"}
            return Api().request("POST", f"{PATH}/import", body).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(owners)) as pool:
        statuses = list(pool.map(run, owners))
    assert sorted(statuses) == [200] + [403] * 5
    assert holders() == [owners[statuses.index(200)]]
    assert Installation.objects.get().holder_user_id == holders()[0]
    assert InstallationRepository.objects.present().count() == 2


@pytest.mark.django_db(transaction=True)
def test_one_owner_who_imports_twice_at_once_gets_it_once(provider: FakeProvider) -> None:
    provider.install("app", "tool")
    together = Barrier(4)

    def run(_: int) -> int:
        try:
            together.wait()
            body = {"userId": OWNER, "externalInstallationId": "7"}
            return Api().request("POST", f"{PATH}/import", body).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [200] * 4
    assert holders() == [OWNER]
    assert InstallationRepository.objects.count() == 2


def test_one_that_the_provider_does_not_know_is_not_there(api: Api, provider: FakeProvider) -> None:
    assert import_(api, "8", expect=404).body["code"] == "installation-not-found"
    assert not Installation.objects.exists()


def test_one_that_was_removed_is_deleted_by_importing_it(api: Api, provider: FakeProvider) -> None:
    provider.install("app")
    imported(api)
    installed = provider.installations.pop(7)
    import_(api, expect=404)
    assert Installation.objects.get().status == "deleted"
    assert listed(api) == []
    provider.installations[7] = installed
    import_(api)
    assert len(listed(api)) == 1


def test_a_404_of_something_before_the_provider_deletes_nothing(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    imported(api)
    provider.override = lambda asked: answer(404, b"<h1>Not found</h1>")
    assert import_(api, expect=502).body["upstream"]["reason"] == "not-found"
    assert len(listed(api)) == 1


def test_a_suspended_one_is_imported_without_repositories(api: Api, provider: FakeProvider) -> None:
    installed = provider.install("app", suspended_at="2026-01-02T03:04:05Z")
    body = import_(api).body
    assert body["installation"]["status"] == "suspended"
    assert "lastSyncedAt" not in body["installation"]
    assert body["syncedRepositoryCount"] == 0
    assert listed(api) == []
    assert provider.issued == []
    installed.suspended_at = None
    assert import_(api).body["syncedRepositoryCount"] == 1
    assert len(listed(api)) == 1


@pytest.mark.parametrize("happens", ["suspended", "deleted"])
def test_one_that_ends_while_it_is_imported_is_told_as_it_is(
    api: Api, provider: FakeProvider, happens: str
) -> None:
    installed = provider.install("app")

    def end(asked: object) -> None:
        if happens == "deleted":
            provider.installations.pop(7, None)
        else:
            installed.suspended_at = "2026-01-02T03:04:05Z"

    provider.after = end
    body = import_(api).body
    assert body["installation"]["status"] == happens
    assert body["syncedRepositoryCount"] == 0
    assert listed(api) == []


def test_an_import_whose_repositories_cannot_be_listed_is_finished_by_another(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    provider.override = lambda asked: (
        answer(500) if "/installation/repositories" in asked.path else None
    )
    import_(api, expect=502)
    assert "lastSyncedAt" not in listed(api)[0]
    provider.override = lambda asked: None
    assert import_(api).body["syncedRepositoryCount"] == 1


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({}, {"/ownerUserId": "required", "/externalInstallationId": "required"}),
        ({"userId": OWNER}, {"/externalInstallationId": "required"}),
        ({"externalInstallationId": "7"}, {"/ownerUserId": "required"}),
        (
            {"userId": OWNER, "externalInstallationId": 7},
            {"/externalInstallationId": "wrong-type"},
        ),
        ({"userId": OWNER, "externalInstallationId": ""}, {"/externalInstallationId": "blank"}),
        (
            {"userId": OWNER, "externalInstallationId": "7", "x": 1},
            {"/x": "unknown-member"},
        ),
        (
            {"userId": OWNER, "externalInstallationId": "7", "ownerUserId": STRANGER},
            {"/ownerUserId": "owner-ambiguous"},
        ),
    ],
    ids=["empty", "no id", "no owner", "a number", "blank", "unknown member", "two owners"],
)
def test_a_body_that_is_wrong_is_refused(
    api: Api, provider: FakeProvider, body: object, faults: dict[str, str]
) -> None:
    assert api.post(f"{PATH}/import", body, expect=400).codes == faults
    assert provider.requests == []


@pytest.mark.parametrize(
    "given",
    ["0", "-7", "+7", "07", "7.0", "0x7", "7/access_tokens", "../7", "9" * 19, "9" * 300, "\u0667"],
)
def test_an_id_that_is_none_never_reaches_the_provider(
    api: Api, provider: FakeProvider, given: str
) -> None:
    codes = import_(api, given, expect=400).codes
    assert set(codes) == {"/externalInstallationId"}
    assert provider.requests == []


def test_the_largest_id_is_asked_for(api: Api, provider: FakeProvider) -> None:
    import_(api, "9" * 18, expect=404)
    assert provider.paths() == [f"GET /app/installations/{'9' * 18}"]
