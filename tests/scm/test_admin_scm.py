"""The admin of source hosting: sync, grants, repositories as they are, deliveries applied again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django.fixtures import Settings

from scm.models import Installation, InstallationGrant, InstallationRepository, WebhookDelivery
from tests.conftest import OWNER, Api
from tests.registries.fake_registry import answer
from tests.scm.fake_provider import FakeProvider, FakeRepository
from tests.scm.installed import STRANGER, import_, imported, names, repositories

pytestmark = pytest.mark.django_db

MODELS: list[type[Model]] = [Installation, InstallationRepository, WebhookDelivery]


@pytest.fixture
def staff() -> Client:
    """A signed-in operator."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    return client


@pytest.fixture
def installation(api: Api, provider: FakeProvider) -> Installation:
    """An installation that an owner has imported."""
    provider.install("app", "tool")
    return imported(api)


def delivery(number: int = 1, **members: Any) -> WebhookDelivery:
    """Store a delivery of an event."""
    given: dict[str, Any] = {
        "delivery_id": f"72d3162e-cc78-11e3-81ab-4c9367dc{number:04}",
        "event": "installation_repositories",
        "action": "added",
        "external_installation_id": 7,
        "payload": {"action": "added", "installation": {"id": 7}, "note": "<script>x</script>"},
        "status": WebhookDelivery.Status.FAILED,
        "error": "The provider did not answer.",
    }
    return WebhookDelivery.objects.create(**{**given, **members})


def url(model: type[Model], page: str, *args: Any) -> str:
    return reverse(f"admin:scm_{model.__name__.lower()}_{page}", args=args)


def act(client: Client, model: type[Model], action: str, chosen: Sequence[Model]) -> list[str]:
    """Run an action of the list page; return the messages that it shows."""
    data = {"action": action, "_selected_action": [str(row.pk) for row in chosen]}
    answered = client.post(url(model, "changelist"), data, follow=True)
    assert answered.status_code == 200
    return [str(message) for message in answered.context["messages"]]


def save_grants(client: Client, installation: Installation, *forms: dict[str, Any]) -> Any:
    """Save the page of an installation with these grants."""
    kept = sum("id" in form for form in forms)
    data = {"grants-TOTAL_FORMS": len(forms), "grants-INITIAL_FORMS": kept}
    for number, form in enumerate(forms):
        row = {"installation": str(installation.pk), **form}
        data |= {f"grants-{number}-{name}": value for name, value in row.items()}
    return client.post(url(Installation, "change", installation.pk), data)


def test_an_operator_syncs_installations(
    staff: Client, api: Api, installation: Installation, provider: FakeProvider
) -> None:
    provider.installations[7].repositories.append(FakeRepository(799, "new"))
    assert act(staff, Installation, "sync", [installation]) == ["1 synced."]
    assert names(repositories(api, installation)) == ["app", "new", "tool"]


def test_a_sync_tells_what_went_wrong_and_goes_on(
    staff: Client, api: Api, installation: Installation, provider: FakeProvider
) -> None:
    provider.install("other", id=8, login="ada")
    other = imported(api, 8)
    provider.installations.pop(8)
    told = act(staff, Installation, "sync", [installation, other])
    assert told == [
        "ada (8): The installation is suspended or was removed at the provider.",
        "1 synced.",
    ]
    provider.override = lambda asked: answer(500, b"hunter2")
    (told_of_failure,) = act(staff, Installation, "sync", [installation])
    assert "answered with status 500" in told_of_failure
    assert "hunter2" not in told_of_failure


def test_a_provider_that_limits_requests_is_not_asked_for_the_rest(
    staff: Client, api: Api, installation: Installation, provider: FakeProvider
) -> None:
    provider.install(id=8)
    other = imported(api, 8)
    asked = len(provider.requests)
    provider.override = lambda asked: answer(429, b"{}")
    (told,) = act(staff, Installation, "sync", [installation, other])
    assert "limits the request rate" in told
    assert len(provider.requests) == asked + 1


def test_a_sync_without_an_app_says_so_once(
    staff: Client, api: Api, installation: Installation, provider: FakeProvider, settings: Settings
) -> None:
    provider.install(id=8)
    other = imported(api, 8)
    settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""
    assert act(staff, Installation, "sync", [installation, other]) == [
        "This installation is not connected to a source-hosting provider."
    ]


def test_an_operator_grants_an_installation_and_takes_it_away(
    staff: Client, api: Api, installation: Installation
) -> None:
    held = InstallationGrant.objects.get()
    keep = {"id": str(held.pk), "owner_user_id": OWNER}
    import_(api, owner=STRANGER, expect=403)
    assert save_grants(staff, installation, keep, {"owner_user_id": STRANGER}).status_code == 302
    import_(api, owner=STRANGER)
    given = InstallationGrant.objects.get(owner_user_id=STRANGER)
    drop = {"id": str(given.pk), "owner_user_id": STRANGER, "DELETE": "on"}
    assert save_grants(staff, installation, keep, drop).status_code == 302
    repositories(api, installation, owner=STRANGER, expect=404)
    assert names(repositories(api, installation)) == ["app", "tool"]
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("owner", ["", "   ", "a\nb", "a\u202eb", "x" * 201, OWNER])
def test_a_grant_that_cannot_be_one_is_refused(
    staff: Client, installation: Installation, owner: str
) -> None:
    held = InstallationGrant.objects.get()
    keep = {"id": str(held.pk), "owner_user_id": OWNER}
    page = save_grants(staff, installation, keep, {"owner_user_id": owner})
    assert InstallationGrant.objects.count() == 1
    # An empty form is no grant at all.
    assert page.status_code == (302 if not owner.strip() else 200)


def test_nothing_but_the_grants_of_an_installation_can_be_changed(
    staff: Client, installation: Installation
) -> None:
    page = staff.get(url(Installation, "change", installation.pk)).content.decode()
    assert 'name="grants-0-owner_user_id"' in page
    for column in ("status", "external_id", "account_login", "holder_user_id", "permissions"):
        assert f'name="{column}"' not in page
    before = Installation.objects.values().get()
    data = {
        "grants-TOTAL_FORMS": 0,
        "grants-INITIAL_FORMS": 0,
        "status": "deleted",
        "holder_user_id": STRANGER,
    }
    staff.post(url(Installation, "change", installation.pk), data)
    assert Installation.objects.values().get() == before


def test_nothing_is_added_or_deleted_by_hand(staff: Client, installation: Installation) -> None:
    row = InstallationRepository.objects.first()
    assert row is not None
    for model, chosen in (
        (Installation, installation),
        (InstallationRepository, row),
        (WebhookDelivery, delivery()),
    ):
        assert staff.get(url(model, "add")).status_code == 403
        assert staff.post(url(model, "delete", chosen.pk), {"post": "yes"}).status_code == 403
        assert staff.post(url(model, "add"), {}).status_code == 403
    for model, chosen in ((InstallationRepository, row), (WebhookDelivery, delivery(2))):
        assert staff.post(url(model, "change", chosen.pk), {}).status_code == 403


def test_a_delivery_is_applied_again(
    staff: Client, api: Api, installation: Installation, provider: FakeProvider
) -> None:
    provider.installations[7].repositories.append(FakeRepository(799, "new"))
    failed = delivery()
    assert act(staff, WebhookDelivery, "redeliver", [failed]) == ["Applied again: 1 processed."]
    failed.refresh_from_db()
    assert (failed.status, failed.error) == ("processed", "")
    assert names(repositories(api, installation)) == ["app", "new", "tool"]


def test_a_delivery_that_fails_again_says_why(
    staff: Client, installation: Installation, provider: FakeProvider
) -> None:
    provider.override = lambda asked: answer(500, b"hunter2")
    told = act(staff, WebhookDelivery, "redeliver", [delivery()])
    assert told[-1] == "Applied again: 1 failed."
    assert "status 500" in told[0]
    assert "hunter2" not in str(told)


def test_pages_show_what_was_stored_and_run_none_of_it(
    staff: Client, installation: Installation
) -> None:
    stored = delivery()
    page = staff.get(url(WebhookDelivery, "change", stored.pk)).content.decode()
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "<script>x" not in page
    page = staff.get(url(Installation, "change", installation.pk)).content.decode()
    assert "&quot;contents&quot;: &quot;write&quot;" in page
    assert staff.get(url(InstallationRepository, "changelist")).status_code == 200


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_search_is_answered(
    staff: Client, installation: Installation, model: type[Model]
) -> None:
    delivery()
    row = model._default_manager.order_by("pk")[0]
    found = staff.get(url(model, "changelist"), {"q": str(row.pk)})
    assert found.context["cl"].result_count == 1
    for text in ("7", "octo", "x", "'", "%", "\\", "é", "-", "a" * 2000, "9" * 30, "a b", "\x00"):
        assert staff.get(url(model, "changelist"), {"q": text}).status_code == 200


def test_installations_are_found_by_whom_they_were_granted_to(
    staff: Client, installation: Installation
) -> None:
    found = staff.get(url(Installation, "changelist"), {"q": OWNER})
    assert [row.pk for row in found.context["cl"].result_list] == [installation.pk]
    assert found.context["cl"].result_list[0].shown_count == 2


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_list_takes_the_same_queries_however_long_it_is(
    staff: Client, api: Api, provider: FakeProvider, model: type[Model]
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert staff.get(url(model, "changelist")).status_code == 200
        return len(captured)

    provider.install("app")
    imported(api)
    delivery()
    few = queries()
    for number in range(10, 16):
        provider.install(*(f"r{number}-{n}" for n in range(5)), id=number)
        imported(api, number)
        delivery(number)
    assert queries() == few


def test_who_may_only_look_may_neither_sync_nor_grant_nor_redeliver(
    installation: Installation, provider: FakeProvider
) -> None:
    looker = get_user_model().objects.create_user("eve", password="x", is_staff=True)
    looker.user_permissions.set(
        Permission.objects.filter(content_type__app_label="scm", codename__startswith="view_")
    )
    client = Client()
    client.force_login(looker)
    stored, asked = delivery(), len(provider.requests)
    act(client, Installation, "sync", [installation])
    act(client, WebhookDelivery, "redeliver", [stored])
    answered = save_grants(client, installation, {"owner_user_id": "eve"})
    assert answered.status_code == 403
    stored.refresh_from_db()
    assert (stored.status, len(provider.requests)) == ("failed", asked)
    assert InstallationGrant.objects.count() == 1
    page = client.get(url(Installation, "change", installation.pk)).content.decode()
    assert 'name="grants-0-owner_user_id"' not in page
