"""Deliveries to the API as it is served in earnest, also while it is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from scm import webhooks
from scm.models import Installation, WebhookDelivery
from tests.scm.conftest import NEVER
from tests.scm.deliveries import PATH, SECRET, headers
from tests.scm.fake_provider import APP_ID, Asked, FakeProvider
from tests.scm.test_webhooks import CREATED
from tests.stack.gateway_process import ApiProcess
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def served(provider: FakeProvider, tmp_path: Path) -> Iterator[list[ApiProcess]]:
    """Processes of the API, one to begin with; a test may add others."""
    processes = [api_process(provider, tmp_path)]
    yield processes
    for process in processes:
        process.stop()


def api_process(provider: FakeProvider, folder: Path) -> ApiProcess:
    """Start an API that knows the provider and the secret of its webhooks."""
    return ApiProcess(
        folder / "api.log",
        SCM_APP_ID=APP_ID,
        SCM_APP_PRIVATE_KEY=provider.private_key,
        SCM_API_BASE_URL=provider.url,
        SCM_APP_WEBHOOK_SECRET=SECRET,
    )


def send(api: ApiProcess, delivery_id: str, **members: object) -> requests.Response:
    """Deliver that the installation was created."""
    body = json.dumps({**CREATED, **members}).encode()
    signed = {**headers(body, "installation", delivery_id), "content-type": "application/json"}
    return requests.post(f"{api.url}{PATH}", data=body, headers=signed, timeout=LONG_WAIT)


def kill_while_the_provider_is_asked(
    api: ApiProcess, provider: FakeProvider, delivery_id: str
) -> None:
    """Deliver, and kill the whole API before the provider has answered."""
    is_asked, is_dead = threading.Event(), threading.Event()

    def wait(_: Asked) -> None:
        is_asked.set()
        assert is_dead.wait(LONG_WAIT)

    def ask() -> None:
        with pytest.raises(requests.RequestException):
            send(api, delivery_id)

    provider.after = wait
    client = threading.Thread(target=ask)
    client.start()
    assert is_asked.wait(LONG_WAIT)
    os.killpg(api.process.pid, signal.SIGKILL)
    api.process.wait()
    is_dead.set()
    client.join(LONG_WAIT)
    provider.after = lambda asked: None


def test_a_delivery_whose_api_was_killed_is_applied_when_it_comes_again(
    served: list[ApiProcess], provider: FakeProvider, tmp_path: Path
) -> None:
    provider.install("app", id=7)
    kill_while_the_provider_is_asked(served[0], provider, "one")
    assert WebhookDelivery.objects.get().status == "received"
    assert not Installation.objects.exists()
    served.append(api_process(provider, tmp_path))
    answer = send(served[1], "one")
    assert (answer.status_code, answer.json()["status"]) == (202, "processed")
    assert Installation.objects.get().repositories.count() == 1


def test_a_delivery_whose_api_was_killed_is_taken_up_by_the_upkeep(
    served: list[ApiProcess], provider: FakeProvider, settings: Settings
) -> None:
    provider.install("app", id=7)
    kill_while_the_provider_is_asked(served[0], provider, "one")
    WebhookDelivery.objects.update(received_at=Now() - timedelta(minutes=2))
    webhooks.keep_deliveries(NEVER)
    assert WebhookDelivery.objects.get().status == "processed"
    assert Installation.objects.exists()


def test_a_delivery_of_several_megabytes_gets_through(
    served: list[ApiProcess], provider: FakeProvider
) -> None:
    provider.install("app", id=7)
    repositories = [
        {"id": number, "full_name": f"octo-org/{number:0100}"} for number in range(40_000)
    ]
    answer = send(served[0], "large", repositories=repositories)
    assert (answer.status_code, answer.json()["status"]) == (202, "processed")
    assert len(json.dumps(WebhookDelivery.objects.get().payload)) < 1000
