"""Whatever the order in which events come, and how often: what we keep is how it is."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from scm.models import Installation, InstallationRepository, WebhookDelivery
from scm.services import import_installation
from scm.webhooks import apply_delivery
from tests.conftest import OWNER, Api
from tests.scm.deliveries import SECRET, deliver, examples
from tests.scm.fake_provider import FakeProvider, FakeRepository, configure
from tests.scm.histories import (
    CREATED,
    DELETED,
    PERMITTED,
    REMOVED,
    RENAMED,
    SUSPENDED,
    UNSUSPENDED,
    Event,
    installation,
    state,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _secret(settings: Settings) -> None:
    settings.SCM_APP_WEBHOOK_SECRET = SECRET


class TestWithTheKey:
    @pytest.fixture(autouse=True)
    def _imported(self, provider: FakeProvider) -> None:
        provider.install("app", "dotfiles", id=7)
        import_installation(7, owner_user_id=OWNER)

    def test_a_repository_that_was_renamed_has_its_new_name_and_its_row(
        self, api: Api, provider: FakeProvider
    ) -> None:
        before = InstallationRepository.objects.get(repository__external_id=700)
        provider.installations[7].repositories[0].name = "renamed"
        assert deliver(api, *RENAMED).body["status"] == "processed"
        after = InstallationRepository.objects.get(repository__external_id=700)
        assert (after.pk, after.full_name) == (before.pk, "octo-org/renamed")

    @pytest.mark.parametrize(
        ("action", "change", "expected"),
        [
            ("archived", {"archived": True}, ("octo-org/app", True, True)),
            ("privatized", {"private": True}, ("octo-org/app", True, False)),
            ("publicized", {"private": False}, ("octo-org/app", False, False)),
            ("edited", {"name": "other"}, ("octo-org/other", True, False)),
        ],
        ids=["archived", "privatized", "publicized", "edited"],
    )
    def test_what_changed_about_a_repository_is_asked_for(
        self,
        api: Api,
        provider: FakeProvider,
        action: str,
        change: dict[str, Any],
        expected: tuple[Any, ...],
    ) -> None:
        for name, value in change.items():
            setattr(provider.installations[7].repositories[0], name, value)
        payload = {"action": action, "installation": {"id": 7}, "repository": {"id": 700}}
        deliver(api, "repository", payload)
        assert (700, *expected) in state()["repositories"]

    @pytest.mark.parametrize("action", ["deleted", "transferred"])
    def test_a_repository_that_is_gone_is_not_shown(
        self, api: Api, provider: FakeProvider, action: str
    ) -> None:
        del provider.installations[7].repositories[0]
        payload = {"action": action, "installation": {"id": 7}, "repository": {"id": 700}}
        deliver(api, "repository", payload)
        assert [row[0] for row in state()["repositories"]] == [701]

    def test_a_transferred_repository_is_with_its_new_installation(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install(id=8, login="other-org")
        moved = provider.installations[7].repositories.pop(0)
        moved.owner = "other-org"
        provider.installations[8].repositories.append(moved)
        payload = {"action": "transferred", "installation": {"id": 8}, "repository": {"id": 700}}
        deliver(api, "repository", payload)
        deliver(api, *REMOVED)
        rows = InstallationRepository.objects.present().order_by("repository__external_id")
        assert list(rows.values_list("installation__external_id", "full_name")) == [
            (8, "other-org/app"),
            (7, "octo-org/dotfiles"),
        ]

    def test_an_event_that_claims_what_is_not_so_changes_nothing(
        self, api: Api, provider: FakeProvider
    ) -> None:
        before = state()
        for event in (SUSPENDED, DELETED, REMOVED, RENAMED, PERMITTED):
            assert deliver(api, *event).body["status"] == "processed"
            assert state() == {**before, "installations": state()["installations"]}
            assert state()["installations"][0]["status"] == "active"
        assert state() == before

    def test_an_installation_that_the_provider_does_not_know_any_more_is_deleted(
        self, api: Api, provider: FakeProvider
    ) -> None:
        del provider.installations[7]
        deliver(api, *RENAMED)
        assert Installation.objects.get().status == "deleted"

    def test_events_of_an_installation_that_nobody_knows_are_ignored(
        self, api: Api, provider: FakeProvider
    ) -> None:
        payload = {"action": "created", "installation": installation(id=99)}
        assert deliver(api, "installation", payload).body["status"] == "ignored"
        assert not Installation.objects.filter(external_id=99).exists()

    def test_every_order_of_a_history_ends_with_how_it_is_now(
        self, api: Api, provider: FakeProvider
    ) -> None:
        """The provider's world goes through a history; its events come in some other order."""
        shown = provider.installations[7]
        shown.repositories[0].name = "renamed"
        shown.repositories[1:] = [FakeRepository(702, "new")]
        shown.permissions = {"contents": "write", "metadata": "read"}
        history = [CREATED, SUSPENDED, UNSUSPENDED, PERMITTED, REMOVED, RENAMED]
        deliver(api, *RENAMED)
        expected = state()
        assert [row[1] for row in expected["repositories"]] == ["octo-org/renamed", "octo-org/new"]
        chosen = random.Random(5)
        for _ in range(12):
            order = history + history
            chosen.shuffle(order)
            for event in order:
                deliver(api, *event)
            assert state() == expected


class TestWithoutTheKey:
    @pytest.fixture(autouse=True)
    def _unconfigured(self, settings: Settings) -> None:
        settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""

    @pytest.mark.parametrize(
        ("history", "status", "login"),
        [
            ([CREATED, SUSPENDED], "suspended", "octo-org"),
            ([CREATED, SUSPENDED, UNSUSPENDED, PERMITTED], "active", "octo-org"),
            ([CREATED, SUSPENDED, UNSUSPENDED, DELETED], "deleted", "octo-org"),
        ],
        ids=["suspended", "permitted", "deleted"],
    )
    def test_every_order_and_every_replay_of_a_history_ends_the_same(
        self, api: Api, history: list[Event], status: str, login: str
    ) -> None:
        ends = []
        for order in itertools.permutations(history):
            Installation.objects.all().delete()
            for event in (*order, *order[:1], *order[::-1]):
                deliver(api, *event)
            ends.append(state())
        assert ends[0]["installations"][0]["status"] == status
        assert ends[0]["installations"][0]["account_login"] == login
        assert all(end == ends[0] for end in ends)

    def test_a_replay_of_an_old_event_does_not_wake_a_suspended_installation(
        self, api: Api
    ) -> None:
        for event in (CREATED, SUSPENDED, CREATED):
            deliver(api, *event)
        assert Installation.objects.get().status == "suspended"

    def test_repositories_are_only_taken_away(
        self, api: Api, provider: FakeProvider, settings: Settings
    ) -> None:
        provider.install("app", "dotfiles", "third", id=7)
        import_installation_with(settings, provider)
        deliver(api, *REMOVED)
        gone = {"action": "deleted", "installation": {"id": 7}, "repository": {"id": 702}}
        deliver(api, "repository", gone)
        assert deliver(api, *RENAMED).body["status"] == "ignored"
        assert [row[1] for row in state()["repositories"]] == ["octo-org/app"]

    def test_an_old_event_that_is_acted_upon_again_takes_nothing_away_that_was_listed_since(
        self, api: Api, provider: FakeProvider, settings: Settings
    ) -> None:
        provider.install("app", id=7)
        import_installation_with(settings, provider)
        gone = {"action": "deleted", "installation": {"id": 7}, "repository": {"id": 700}}
        deliver(api, "repository", gone)
        assert state()["repositories"] == []
        import_installation_with(settings, provider)  # the provider says that it is there
        delivery = apply_delivery(WebhookDelivery.objects.get().pk)
        assert delivery.status == "processed"
        assert [row[1] for row in state()["repositories"]] == ["octo-org/app"]

    def test_another_installations_event_takes_nothing_away(
        self, api: Api, provider: FakeProvider, settings: Settings
    ) -> None:
        provider.install("app", id=7)
        import_installation_with(settings, provider)
        gone = {"action": "deleted", "installation": {"id": 8}, "repository": {"id": 700}}
        deliver(api, "repository", gone)
        assert [row[1] for row in state()["repositories"]] == ["octo-org/app"]

    @pytest.mark.parametrize(
        "change",
        [
            {"account": None},
            {"account": {"id": 1}},
            {"account": {"login": "x" * 2000, "id": 1}},
            {"repository_selection": "some"},
            {"updated_at": None, "created_at": "yesterday"},
            {"updated_at": 10**18, "created_at": None},
            {"permissions": {"contents": "everything"}},
            {"id": "7"},
            {"id": True},
        ],
        ids=lambda change: "-".join(change),
    )
    def test_a_payload_that_cannot_be_right_is_ignored(
        self, api: Api, change: dict[str, Any]
    ) -> None:
        payload = {"action": "created", "installation": installation(**change)}
        assert deliver(api, "installation", payload).body["status"] == "ignored"
        assert not Installation.objects.exists()

    def test_the_published_examples_in_any_order_end_the_same(self, api: Api) -> None:
        published = [
            (event, payload)
            for event, payload in examples()["api.github.com"]
            if event.startswith("installation") or event == "repository"
        ]
        ends = []
        chosen = random.Random(7)
        for _ in range(6):
            Installation.objects.all().delete()
            order = published + published
            chosen.shuffle(order)
            for event, payload in order:
                deliver(api, event, payload)
            ends.append(_without_ties(state()))
        assert ends[0]["installations"]
        assert all(end == ends[0] for end in ends)


def _without_ties(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the examples tell differently for one and the same second."""
    for row in found["installations"]:
        for member in ("permissions", "repository_selection", "account_login"):
            del row[member]
    return found


def import_installation_with(settings: Settings, provider: FakeProvider) -> None:
    """Import while there is a key, and then take it away."""
    configure(settings, provider)
    import_installation(7, owner_user_id=OWNER)
    settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""


@pytest.mark.parametrize(
    "payload",
    [{}, {"installation": None}, {"installation": []}, {"installation": {"id": None}}],
    ids=["none", "null", "array", "no id"],
)
@pytest.mark.parametrize("event", ["installation", "repository", "installation_repositories"])
def test_an_event_of_no_installation_is_ignored(api: Api, event: str, payload: Any) -> None:
    assert deliver(api, event, payload).body["status"] == "ignored"


@pytest.mark.parametrize(
    "event",
    ["push", "ping", "github_app_authorization", "member", "an_event_of_tomorrow"],
)
def test_events_that_change_nothing_here_are_ignored_and_kept(
    api: Api, provider: FakeProvider, event: str
) -> None:
    delivery_id = str(uuid.UUID(int=len(event)))
    payload = {"action": "revoked", "installation": {"id": 7}}
    answer = deliver(api, event, payload, delivery_id=delivery_id)
    assert answer.body == {"deliveryId": delivery_id, "status": "ignored"}
    assert WebhookDelivery.objects.get().event == event
    assert provider.requests == []
