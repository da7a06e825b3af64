"""Syncing installations: repositories come, go and change, and the newest answer stands."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from scm.models import Installation, InstallationRepository, SourceRepository
from scm.provider import RepositoryFacts, RepositoryListing
from scm.services import (
    database_now,
    refresh_installation,
    store_repositories,
)
from tests.conftest import OWNER, Api
from tests.registries.fake_registry import answer
from tests.scm.fake_provider import Asked, FakeProvider, FakeRepository
from tests.scm.installed import (
    PATH,
    STRANGER,
    grant,
    imported,
    listed,
    names,
    repositories,
    repository_of,
    say,
    sync,
)

pytestmark = pytest.mark.django_db


def test_a_sync_answers_with_the_count_and_the_time(api: Api, provider: FakeProvider) -> None:
    installed = provider.install("app")
    installation = imported(api)
    installed.repositories.append(FakeRepository(701, "tool"))
    body = sync(api, installation).body
    assert body["installationId"] == str(installation.pk)
    assert body["syncedRepositoryCount"] == 2
    assert body["syncedAt"] == listed(api)[0]["lastSyncedAt"]
    assert names(repositories(api, installation)) == ["app", "tool"]


def test_the_owner_is_said_in_the_query_or_in_the_body(api: Api, provider: FakeProvider) -> None:
    provider.install()
    path = f"{PATH}/{imported(api).pk}/sync"
    api.post(f"{path}?userId={OWNER}", expect=200)
    api.post(f"{path}?ownerUserId={OWNER}", {}, expect=200)
    api.post(path, {"userId": OWNER}, expect=200)
    assert api.post(path, expect=400).codes == {"/ownerUserId": "required"}
    assert api.post(path, {"userId": OWNER, "force": True}, expect=400).codes == {
        "/force": "unknown-member"
    }


def test_only_who_was_granted_it_may_sync(api: Api, provider: FakeProvider) -> None:
    provider.install("app")
    installation = imported(api)
    asked = len(provider.requests)
    refused = sync(api, installation, owner=STRANGER, expect=404)
    assert refused.body["code"] == "installation-not-found"
    assert len(provider.requests) == asked
    grant(installation, STRANGER)
    sync(api, installation, owner=STRANGER)


def test_a_repository_that_is_renamed_or_moved_keeps_its_ids(
    api: Api, provider: FakeProvider
) -> None:
    installed = provider.install("app", "tool")
    installation = imported(api)
    (before,) = repositories(api, installation, "&search=app").body["items"]
    moved = installed.repositories[0]
    moved.name, moved.owner, moved.default_branch = "service", "octo-labs", "trunk"
    moved.private, moved.archived = False, True
    sync(api, installation)
    (after,) = repositories(api, installation, "&search=service").body["items"]
    for name in ("installationRepositoryId", "repositoryId", "externalRepositoryId"):
        assert after[name] == before[name]
    assert after["fullName"] == "octo-labs/service"
    assert (after["defaultBranch"], after["isPrivate"], after["isArchived"]) == (
        "trunk",
        False,
        True,
    )
    assert after["lastSyncedAt"] > before["lastSyncedAt"]


def test_two_repositories_may_swap_their_names(api: Api, provider: FakeProvider) -> None:
    installed = provider.install("a", "b")
    installation = imported(api)
    first = repository_of(installation, "a").pk
    installed.repositories[0].name, installed.repositories[1].name = "b", "a"
    sync(api, installation)
    assert repository_of(installation, "b").pk == first
    assert names(repositories(api, installation)) == ["a", "b"]


def test_a_name_may_be_taken_over_by_a_new_repository(api: Api, provider: FakeProvider) -> None:
    installed = provider.install("app")
    installation = imported(api)
    old = repository_of(installation, "app").pk
    installed.repositories = [FakeRepository(999, "app")]
    sync(api, installation)
    (shown,) = repositories(api, installation).body["items"]
    assert shown["installationRepositoryId"] != str(old)
    assert shown["externalRepositoryId"] == "999"


def test_what_is_gone_is_removed_and_what_is_back_is_the_same(
    api: Api, provider: FakeProvider
) -> None:
    installed = provider.install("app", "tool")
    installation = imported(api)
    row = repository_of(installation, "tool")
    gone = installed.repositories.pop()
    assert sync(api, installation).body["syncedRepositoryCount"] == 1
    assert names(repositories(api, installation)) == ["app"]
    row.refresh_from_db()
    assert row.removed_at is not None
    removed_at = row.removed_at
    sync(api, installation)
    row.refresh_from_db()
    assert row.removed_at == removed_at
    installed.repositories.append(gone)
    assert sync(api, installation).body["syncedRepositoryCount"] == 2
    assert repository_of(installation, "tool").pk == row.pk
    assert names(repositories(api, installation)) == ["app", "tool"]


def test_a_repository_that_moves_to_another_installation_is_the_same_repository(
    api: Api, provider: FakeProvider
) -> None:
    first = provider.install("app")
    second = provider.install(id=8, login="ada")
    old, new = imported(api, 7), imported(api, 8)
    repository = repository_of(old, "app").repository_id
    second.repositories.append(first.repositories.pop())
    sync(api, new)
    sync(api, old)
    assert names(repositories(api, old)) == []
    assert repository_of(new, "app").repository_id == repository
    assert SourceRepository.objects.count() == 1


def test_a_listing_that_never_holds_still_removes_nothing(api: Api, provider: FakeProvider) -> None:
    installed = provider.install(*(f"r{number}" for number in range(150)))
    installation = imported(api)

    def rotate(asked: Asked) -> None:
        if asked.path.endswith("&page=1"):
            installed.repositories.pop(0)
            installed.repositories += [FakeRepository(5000 + len(provider.requests) + n, f"n{n}")
                                       for n in range(2)]  # fmt: skip

    provider.after = rotate
    sync(api, installation)
    assert not InstallationRepository.objects.filter(removed_at__isnull=False).exists()
    provider.after = lambda asked: None
    count = sync(api, installation).body["syncedRepositoryCount"]
    assert count == len(installed.repositories)


@pytest.mark.parametrize("happens", ["suspended", "deleted"])
def test_what_has_ended_is_noticed_by_a_sync(
    api: Api, provider: FakeProvider, happens: str
) -> None:
    installed = provider.install("app")
    installation = imported(api)
    if happens == "suspended":
        installed.suspended_at = "2026-01-02T03:04:05Z"
    else:
        provider.installations.clear()
    assert sync(api, installation, expect=403).body["code"] == "installation-not-active"
    installation.refresh_from_db()
    assert installation.status == happens
    assert (installation.suspended_at is not None) == (happens == "suspended")
    assert listed(api) == []
    installed.suspended_at = None
    provider.installations[7] = installed
    sync(api, installation)
    assert names(repositories(api, installation)) == ["app"]


def test_one_that_is_suspended_between_two_questions_is_not_active(
    api: Api, provider: FakeProvider
) -> None:
    installed = provider.install("app")
    installation = imported(api)

    def suspend(asked: Asked) -> None:
        installed.suspended_at = "2026-01-02T03:04:05Z"

    provider.after = suspend
    sync(api, installation, expect=403)
    installation.refresh_from_db()
    assert installation.status == "suspended"


@pytest.mark.parametrize("part", ["/access_tokens", "page=2", "/app/installations/7"])
def test_a_sync_that_fails_changes_nothing(api: Api, provider: FakeProvider, part: str) -> None:
    installed = provider.install(*(f"r{number}" for number in range(120)))
    installation = imported(api)
    before = repositories(api, installation).body
    installed.repositories = [FakeRepository(5000 + n, f"n{n}") for n in range(120)]
    provider.override = lambda asked: answer(500) if part in asked.path else None
    sync(api, installation, expect=502)
    assert repositories(api, installation).body == before


def facts(*external_ids: int, name: str = "r") -> RepositoryListing:
    """Return a complete listing of repositories with these ids."""
    return RepositoryListing(
        [RepositoryFacts(n, "octo-org", f"{name}{n}", "main", True, False, None)
         for n in external_ids],
        is_complete=True,
    )  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_of_answers_the_one_asked_for_last_stands_in_whatever_order_they_are_stored(
    api: Api, provider: FakeProvider, order: tuple[int, ...]
) -> None:
    provider.install()
    installation = imported(api)
    now = database_now()
    listings = [facts(1, 2, name="a"), facts(2, 3, name="b"), facts(3, 4, name="c")]
    for number in order:
        moment = now + timedelta(seconds=number)
        store_repositories(installation.pk, listings[number], as_of=moment)
    assert names(repositories(api, installation)) == ["c3", "c4"]
    installation.refresh_from_db()
    assert installation.synced_at == now + timedelta(seconds=2)


STATES = ("active", "suspended", "deleted")


def hour_ago() -> datetime:
    """Return a time after which much may have happened."""
    return database_now() - timedelta(hours=1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("newest", STATES)
def test_a_late_state_never_reverts_a_newer_one(
    api: Api, provider: FakeProvider, newest: str, order: tuple[int, ...]
) -> None:
    provider.install()
    installation = imported(api)
    now = hour_ago()
    Installation.objects.update(observed_at=now)
    said = [state for state in STATES if state != newest] + [newest]
    for number in order:
        say(provider, said[number], now + timedelta(seconds=number))
    installation.refresh_from_db()
    assert (installation.status, installation.observed_at) == (newest, now + timedelta(seconds=2))


@pytest.mark.parametrize("order", list(itertools.permutations(STATES)), ids="-".join)
def test_of_states_of_one_moment_the_one_that_gives_least_stands(
    api: Api, provider: FakeProvider, order: tuple[str, ...]
) -> None:
    provider.install()
    installation = imported(api)
    moment = database_now()
    for state in order:
        say(provider, state, moment)
    installation.refresh_from_db()
    assert installation.status == "deleted"


def test_what_is_said_of_the_future_does_not_stand_for_ever(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    installation = imported(api)
    say(provider, "suspended", database_now() + timedelta(days=1))
    installation.refresh_from_db()
    assert installation.status == "suspended"
    assert installation.observed_at <= database_now()
    assert sync(api, installation).body["syncedRepositoryCount"] == 1


def test_a_refresh_tells_what_became_of_an_installation(api: Api, provider: FakeProvider) -> None:
    assert refresh_installation(7) is None
    installed = provider.install("app")
    synced = refresh_installation(7)
    assert synced is not None
    assert (synced.installation.status, synced.installation.holder_user_id) == ("active", "")
    assert synced.repository_count == 1
    assert listed(api) == []
    installed.suspended_at = "2026-01-02T03:04:05Z"
    synced = refresh_installation(7)
    assert synced is not None
    assert (synced.installation.status, synced.repository_count) == ("suspended", 0)
    provider.installations.clear()
    synced = refresh_installation(7)
    assert synced is not None
    assert synced.installation.status == "deleted"


def test_thousands_of_repositories_take_few_statements(
    api: Api, provider: FakeProvider, django_assert_max_num_queries: Any
) -> None:
    provider.install()
    installation = imported(api)
    listing = facts(*range(1, 3001))
    with django_assert_max_num_queries(30):
        store_repositories(installation.pk, listing, as_of=database_now())
    assert InstallationRepository.objects.present().count() == 3000


def test_no_token_and_no_key_is_stored(api: Api, provider: FakeProvider) -> None:
    provider.install("app")
    installation = imported(api)
    sync(api, installation)
    stored = json.dumps(
        [list(model.objects.values()) for model in (Installation, InstallationRepository)],
        default=str,
    )
    assert provider.issued
    assert all(issued.token not in stored for issued in provider.issued)
    assert provider.private_key.splitlines()[1] not in stored
