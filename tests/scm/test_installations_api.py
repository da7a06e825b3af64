"""Reading installations and their repositories, and how a failing provider is told."""

from __future__ import annotations

import json
import time
import uuid
from functools import partial
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from scm.models import Installation
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
    repository_of,
    sync,
)
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db


def test_an_installation_is_shown_with_what_the_provider_says(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app", selection="selected")
    installation = imported(api)
    (shown,) = listed(api)
    synced_at = shown.pop("lastSyncedAt")
    assert synced_at.endswith("Z")
    assert shown == {
        "installationId": str(installation.pk),
        "externalInstallationId": "7",
        "accountLogin": "octo-org",
        "accountType": "organization",
        "status": "active",
        "repositorySelection": "selected",
    }


def test_a_repository_is_shown_with_what_the_provider_says(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    installation = imported(api)
    row = repository_of(installation, "app")
    (shown,) = repositories(api, installation).body["items"]
    assert shown.pop("lastSyncedAt").endswith("Z")
    assert shown == {
        "installationRepositoryId": str(row.pk),
        "installationId": str(installation.pk),
        "repositoryId": str(row.repository_id),
        "externalRepositoryId": "700",
        "owner": "octo-org",
        "name": "app",
        "fullName": "octo-org/app",
        "defaultBranch": "main",
        "isPrivate": True,
        "isArchived": False,
    }


def test_an_owner_sees_what_he_was_granted_and_nothing_else(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    provider.install("tool", id=8, login="ada", type="User")
    first, second = imported(api, 7), imported(api, 8, owner=STRANGER)
    assert [item["externalInstallationId"] for item in listed(api)] == ["7"]
    assert [item["accountType"] for item in listed(api, owner=STRANGER)] == ["user"]
    grant(first, STRANGER)
    found = [item["externalInstallationId"] for item in listed(api, owner=STRANGER)]
    assert found == ["8", "7"]
    assert listed(api, owner="usr_nobody") == []
    assert repositories(api, second, expect=404).body["code"] == "installation-not-found"


@pytest.mark.parametrize("status", ["suspended", "deleted"])
def test_what_is_suspended_or_deleted_grants_nothing(
    api: Api, provider: FakeProvider, status: str
) -> None:
    provider.install("app")
    installation = imported(api)
    Installation.objects.update(status=status)
    assert listed(api) == []
    assert repositories(api, installation, expect=403).body["code"] == "installation-not-active"


def test_lists_are_read_page_by_page(api: Api, provider: FakeProvider) -> None:
    for number in range(1, 6):
        provider.install(id=number)
        imported(api, number)
    provider.install(*(f"r{number}" for number in range(5)))
    installation = imported(api)
    for path, key, expected in (
        (f"{PATH}?userId={OWNER}", "externalInstallationId", {"1", "2", "3", "4", "5", "7"}),
        (
            f"{PATH}/{installation.pk}/repositories?userId={OWNER}",
            "name",
            {f"r{number}" for number in range(5)},
        ),
    ):
        seen: list[str] = []
        cursor = ""
        for _ in range(4):
            body = api.get(f"{path}&limit=2{cursor}").body
            seen += [item[key] for item in body["items"]]
            if "nextCursor" not in body:
                break
            cursor = f"&cursor={body['nextCursor']}"
        assert "nextCursor" not in body
        assert len(seen) == len(expected)
        assert set(seen) == expected


def test_repositories_are_searched_by_part_of_their_name(api: Api, provider: FakeProvider) -> None:
    provider.install("app", "App-tools", "a_p", "a%p", "other")
    provider.installations[7].repositories[3].name = "axp"
    installation = imported(api)
    for search, expected in (
        ("app", ["App-tools", "app"]),
        ("APP-", ["App-tools"]),
        ("octo-org/o", ["other"]),
        ("a_p", ["a_p"]),
        ("%25", []),
        ("nothing", []),
        ("%20app%20", ["App-tools", "app"]),
    ):
        assert names(repositories(api, installation, f"&search={search}")) == expected


def test_reading_takes_the_same_queries_however_much_there_is(
    api: Api, provider: FakeProvider, django_assert_num_queries: Any
) -> None:
    provider.install(*(f"r{number}" for number in range(30)))
    installation = imported(api)
    with django_assert_num_queries(1):
        listed(api)
    with django_assert_num_queries(2):
        repositories(api, installation)


@pytest.mark.parametrize("path", ["", "/repositories"])
def test_an_owner_is_required(api: Api, provider: FakeProvider, path: str) -> None:
    provider.install()
    installation = imported(api)
    place = f"{PATH}/{installation.pk}{path}" if path else PATH
    assert api.get(place, expect=400).codes == {"ownerUserId": "required"}


@pytest.mark.parametrize(
    ("query", "faults"),
    [
        ("&limit=0", {"limit": "min-value"}),
        ("&limit=201", {"limit": "max-value"}),
        ("&limit=5x", {"limit": "invalid"}),
        ("&cursor=zzz", {"cursor": "invalid-cursor"}),
        ("&search=", {"search": "blank"}),
        ("&search=a%00b", {"search": "invalid-character"}),
        ("&search=a%0Ab", {"search": "control-character"}),
        (f"&search={'x' * 201}", {"search": "max-length"}),
        ("&serach=a", {"serach": "unknown-parameter"}),
        ("&search=a&search=b", {"search": "repeated-parameter"}),
    ],
)
def test_a_query_that_is_wrong_is_refused(
    api: Api, provider: FakeProvider, query: str, faults: dict[str, str]
) -> None:
    provider.install()
    assert repositories(api, imported(api), query, expect=400).codes == faults


@pytest.mark.parametrize("wanted", [str(uuid.UUID(int=10)), "7", "x", "..%2f"])
def test_an_unknown_installation_is_not_there(
    api: Api, provider: FakeProvider, wanted: str
) -> None:
    for answered in (
        api.get(f"{PATH}/{wanted}/repositories?userId={OWNER}", expect=404),
        api.post(f"{PATH}/{wanted}/sync?userId={OWNER}", expect=404),
    ):
        assert answered.body["code"] in ("installation-not-found", "not-found")
    assert provider.requests == []


def test_reading_needs_no_app(api: Api, provider: FakeProvider, settings: Settings) -> None:
    provider.install("app")
    installation = imported(api)
    settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""
    asked = len(provider.requests)
    assert len(listed(api)) == 1
    assert names(repositories(api, installation)) == ["app"]
    assert len(provider.requests) == asked


def test_without_an_app_a_sound_request_is_told_so_and_another_one_what_is_wrong(api: Api) -> None:
    owner = {"ownerUserId": "usr_ada"}
    for answered in (
        api.post(f"{PATH}/import", {**owner, "externalInstallationId": "7"}, expect=503),
        api.post(f"{PATH}/{uuid.uuid4()}/sync", owner, expect=503),
    ):
        assert answered.body["code"] == "scm-app-unconfigured"
    api.post(f"{PATH}/import", {"nonsense": 1}, expect=400)
    api.post(f"{PATH}/import", raw=b"{", expect=400)
    api.post(f"{PATH}/{uuid.uuid4()}/sync", {"nonsense": 1}, expect=400)


def test_a_provider_that_fails_is_told_with_its_status_and_nothing_internal(
    api: Api, provider: FakeProvider
) -> None:
    provider.install("app")
    installation = imported(api)
    provider.override = lambda asked: answer(500, b"panic: hunter2 at /srv/provider.rb:12")
    for call in (partial(import_, api), partial(sync, api, installation)):
        with capture_logs() as logs:
            answered = call(expect=502)
        assert answered.body["code"] == "scm-provider-failed"
        assert answered.body["upstream"] == {
            "name": "scm-provider",
            "reason": "status",
            "status": 500,
        }
        told = answered.content.decode() + json.dumps(logs, default=str)
        for hidden in ("hunter2", "/srv", "127.0.0.1", "eyJ", "ghs_", "PRIVATE KEY"):
            assert hidden not in told
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
            "scm_provider_failed"
        ]
    assert len(listed(api)) == 1


def test_a_provider_that_wants_us_to_wait_is_passed_on(api: Api, provider: FakeProvider) -> None:
    headers = {"Retry-After": "77"}
    provider.override = lambda asked: answer(429, b"{}", **headers)
    answered = import_(api, expect=502)
    assert answered.headers["Retry-After"] == "77"
    assert answered.body["upstream"] == {
        "name": "scm-provider",
        "reason": "rate-limited",
        "status": 429,
        "retryAfterSeconds": 77,
    }


def test_a_provider_that_hangs_is_left(
    api: Api, provider: FakeProvider, settings: Settings
) -> None:
    settings.SCM_API_READ_TIMEOUT_MS = 300
    provider.override = lambda asked: lambda request: time.sleep(2 * LONG_WAIT)
    assert import_(api, expect=502).body["upstream"] == {
        "name": "scm-provider",
        "reason": "timed-out",
    }


def test_all_questions_of_one_request_together_end_in_time(
    api: Api, provider: FakeProvider, settings: Settings
) -> None:
    provider.install("app")
    settings.SCM_API_TOTAL_TIMEOUT_MS = 1500
    # Neither takes too long by itself.
    slow = {"/app/installations/7": 1.0, "/installation/repositories": 0.7}
    provider.after = lambda asked: time.sleep(
        next((wait for part, wait in slow.items() if asked.path.split("?")[0].endswith(part)), 0)
    )
    assert import_(api, expect=502).body["upstream"]["reason"] == "timed-out"


def test_a_wrong_app_is_told_as_such_and_deletes_nothing(
    api: Api, provider: FakeProvider, settings: Settings
) -> None:
    provider.install("app")
    installation = imported(api)
    settings.SCM_APP_ID = "4712"
    for answered in (import_(api, expect=502), sync(api, installation, expect=502)):
        assert answered.body["upstream"] == {
            "name": "scm-provider",
            "reason": "unauthorized",
            "status": 404,
        }
    assert len(listed(api)) == 1
