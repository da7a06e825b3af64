"""Events and answers that overtake each other: the newest answer stands."""

from __future__ import annotations

import queue
import random
import threading

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from scm.models import Installation, WebhookDelivery
from scm.services import import_installation
from tests.conftest import OWNER, Api
from tests.scm.deliveries import SECRET, deliver
from tests.scm.fake_provider import FakeProvider, FakeRepository
from tests.scm.histories import CREATED, REMOVED, RENAMED, SUSPENDED, state


@pytest.fixture(autouse=True)
def _secret(settings: Settings) -> None:
    settings.SCM_APP_WEBHOOK_SECRET = SECRET


@pytest.mark.django_db(transaction=True)
def test_an_old_answer_that_comes_late_does_not_undo_a_newer_one(
    api: Api, provider: FakeProvider
) -> None:
    """A slow question is overtaken by the whole handling of another event."""
    provider.install("app", id=7)
    import_installation(7, owner_user_id=OWNER)
    overtaken = iter([True])

    def suspend_meanwhile(_: object) -> None:
        if next(overtaken, False):
            provider.installations[7].suspended_at = "2026-01-02T03:04:05Z"
            import_installation(7, owner_user_id=OWNER)
            connection.close()

    provider.after = suspend_meanwhile
    deliver(api, *RENAMED)
    assert Installation.objects.get().status == "suspended"


@pytest.mark.django_db(transaction=True)
def test_events_that_come_at_the_same_time_while_the_provider_changes_end_with_how_it_is(
    api: Api, provider: FakeProvider
) -> None:
    """Every change has its event, all of them come twice, late, in any order and at once."""
    shown = provider.install("app", "dotfiles", id=7)
    import_installation(7, owner_user_id=OWNER)
    chosen = random.Random(11)
    waiting: queue.Queue[int | None] = queue.Queue()

    def change(number: int) -> None:
        shown.login = f"octo-{number}"
        shown.repositories[0].name = f"app-{number}"
        shown.repositories[1:] = [FakeRepository(800 + number, f"new-{number}")]
        shown.suspended_at = "2026-01-02T03:04:05Z" if number % 5 == 3 else None

    def send() -> None:
        mine = Api()
        try:
            while (number := waiting.get()) is not None:
                name, payload = [RENAMED, CREATED, SUSPENDED, REMOVED][number % 4]
                deliver(mine, name, payload, delivery_id=f"delivery-{number}")
        finally:
            connection.close()

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    held: list[int] = []
    for number in range(25):
        change(number)
        held += [number, number]
        chosen.shuffle(held)
        while len(held) > chosen.randint(0, 6):
            waiting.put(held.pop())
    for last in [*held, None, None, None, None]:
        waiting.put(last)
    for sender in senders:
        sender.join()
    for left in WebhookDelivery.objects.filter(status="received"):
        name, payload = [RENAMED, CREATED, SUSPENDED, REMOVED][
            int(left.delivery_id.removeprefix("delivery-")) % 4
        ]
        deliver(api, name, payload, delivery_id=left.delivery_id)
    assert set(WebhookDelivery.objects.values_list("status", flat=True)) == {"processed"}
    found = state()
    assert found["installations"][0]["account_login"] == "octo-24"
    assert found["installations"][0]["status"] == "active"
    assert sorted(row[1] for row in found["repositories"]) == ["octo-org/app-24", "octo-org/new-24"]
