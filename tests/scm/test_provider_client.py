"""The provider's client against a provider that verifies what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from scm.models import Installation
from scm.provider import InstallationFacts, ProviderClient, clone_url
from scm.provider.tokens import AppKey
from tests.scm.fake_provider import APP_ID, FakeProvider, FakeRepository, decoded, running_provider


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """A provider that the settings do not know."""
    with running_provider() as provider:
        yield provider


@pytest.fixture
def client(fake: FakeProvider) -> Iterator[ProviderClient]:
    """Its client."""
    client = ProviderClient(fake.url, app_id=APP_ID, private_key=fake.private_key)
    yield client
    client.close()


def pages_asked(fake: FakeProvider) -> list[str]:
    return [
        parse_qs(urlsplit(asked.path).query)["page"][0]
        for asked in fake.requests
        if "/installation/repositories" in asked.path
    ]


def test_an_installation_is_read_as_the_provider_has_it(
    fake: FakeProvider, client: ProviderClient
) -> None:
    installed = fake.install("app", selection="selected")
    assert client.installation(7) == InstallationFacts(
        external_id=7,
        account_id=9007,
        account_login="octo-org",
        account_type=Installation.AccountType.ORGANIZATION,
        repository_selection=Installation.RepositorySelection.SELECTED,
        permissions=installed.permissions,
        suspended_at=None,
    )
    installed.suspended_at, installed.type = "2026-01-02T03:04:05Z", "User"
    facts = client.installation(7)
    assert facts.suspended_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert facts.account_type == Installation.AccountType.USER
    assert fake.refusals == []


def test_the_apps_token_is_backdated_a_minute_and_lives_less_than_ten(fake: FakeProvider) -> None:
    now = 1_790_000_000.5
    encoded = AppKey(APP_ID, fake.private_key).token(now=now).split(".")
    header, claims = (json.loads(decoded(part)) for part in encoded[:2])
    assert header == {"alg": "RS256", "typ": "JWT"}
    assert claims == {"iat": 1_790_000_000 - 60, "exp": 1_790_000_000 + 540, "iss": APP_ID}
    assert all("=" not in part for part in encoded)


def test_a_token_is_asked_for_one_repository_and_for_reading(
    fake: FakeProvider, client: ProviderClient
) -> None:
    fake.install("app", "other")
    given = client.installation_token(7, repository_ids=[700])
    assert json.loads(fake.requests[-1].body) == {
        "permissions": {"contents": "read"},
        "repository_ids": [700],
    }
    assert fake.allows(given.token, "octo-org/app")
    assert not fake.allows(given.token, "octo-org/other")
    assert not fake.allows(given.token, "octo-org/app", permission="issues")
    assert timedelta(minutes=50) < given.expires_at - datetime.now(UTC) < timedelta(minutes=61)
    assert given.token not in repr(given)


def test_a_token_for_no_repository_is_never_asked_for(
    fake: FakeProvider, client: ProviderClient
) -> None:
    fake.install("app")
    with pytest.raises(AssertionError):
        client.installation_token(7, repository_ids=[])
    assert fake.requests == []


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 250])
@pytest.mark.parametrize("links", [True, False], ids=["with links", "without links"])
def test_all_pages_are_read_and_each_repository_is_there_once(
    fake: FakeProvider, client: ProviderClient, count: int, links: bool
) -> None:
    fake.install(*(f"r{number}" for number in range(count)))
    fake.with_links = links
    listing = client.repositories(7)
    assert listing.is_complete
    assert [repository.name for repository in listing.repositories] == [
        f"r{number}" for number in range(count)
    ]
    # Where no link says anything, a full page may be followed by an empty one.
    full = max(1, -(-count // 100)) if links and count != 100 else count // 100 + 1
    assert pages_asked(fake) == [str(number) for number in range(1, full + 1)]
    assert fake.issued[0].permissions == {"metadata": "read"}
    assert fake.refusals == []


def test_a_provider_with_small_pages_is_followed_by_its_links(
    fake: FakeProvider, client: ProviderClient
) -> None:
    fake.install(*(f"r{number}" for number in range(75)))
    fake.largest_page = 30
    assert len(client.repositories(7).repositories) == 75
    assert pages_asked(fake) == ["1", "2", "3"]


def test_a_list_that_changes_between_its_pages_is_read_again(
    fake: FakeProvider, client: ProviderClient
) -> None:
    installed = fake.install(*(f"r{number}" for number in range(150)))
    # The first one goes while page 1 is on its way: what was first on page 2 is on page 1 now.
    fake.after = lambda asked: (
        installed.repositories.remove(installed.repositories[0])
        if asked.path.endswith("page=1") and len(installed.repositories) == 150
        else None
    )
    listing = client.repositories(7)
    assert listing.is_complete
    assert sorted(facts.external_id for facts in listing.repositories) == list(range(701, 850))
    assert pages_asked(fake) == ["1", "2", "1", "2"]


def test_a_list_that_never_holds_still_is_incomplete(
    fake: FakeProvider, client: ProviderClient
) -> None:
    installed = fake.install(*(f"r{number}" for number in range(150)))

    def take_one(asked: object) -> None:
        if "page=1" in str(asked):
            installed.repositories.pop(0)

    fake.after = take_one
    listing = client.repositories(7)
    assert not listing.is_complete
    assert len(pages_asked(fake)) == 6


def test_repositories_are_read_with_all_that_is_told_of_them(
    fake: FakeProvider, client: ProviderClient
) -> None:
    fake.install().repositories = [
        FakeRepository(5, "a.b-c_d", "Octo_org", "feature/ü", private=False, archived=True)
    ]
    (facts,) = client.repositories(7).repositories
    assert (facts.external_id, facts.full_name) == (5, "Octo_org/a.b-c_d")
    assert (facts.default_branch, facts.is_private, facts.is_archived) == ("feature/ü", False, True)
    assert facts.pushed_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        ("https://api.github.com", "https://github.com/o/r.git"),
        ("https://api.github.com/", "https://github.com/o/r.git"),
        ("https://api.octo.ghe.com", "https://octo.ghe.com/o/r.git"),
        ("https://git.example.org/api/v3", "https://git.example.org/o/r.git"),
        ("https://api.example.org:8443/api/v3", "https://api.example.org:8443/o/r.git"),
        ("https://git.example.org:443/api/v3", "https://git.example.org/o/r.git"),
        ("http://git.example.org:443/api/v3", "http://git.example.org:443/o/r.git"),
        ("http://127.0.0.1:3000/api/v3/", "http://127.0.0.1:3000/o/r.git"),
        ("HTTPS://Git.Example.org/api/v3", "https://git.example.org/o/r.git"),
    ],
)
def test_repositories_are_cloned_from_where_the_api_belongs(api: str, expected: str) -> None:
    assert clone_url(api, "o/r") == expected
