"""The provider's deliveries: only its own, each once, and none of them lost."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.database.locks import try_advisory_lock
from scm import webhooks
from scm.models import Installation, WebhookDelivery
from scm.services import import_installation
from tests.conftest import OWNER, Api
from tests.scm.conftest import NEVER
from tests.scm.deliveries import PATH, SECRET, deliver, examples, headers, signature
from tests.scm.fake_provider import FakeProvider
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db

CREATED: dict[str, Any] = {
    "action": "created",
    "installation": {
        "id": 7,
        "account": {"login": "octo-org", "id": 9007, "type": "Organization"},
        "repository_selection": "all",
        "permissions": {"contents": "read"},
        "created_at": 1_767_000_000,
        "updated_at": 1_767_000_000,
        "suspended_at": None,
    },
}


@pytest.fixture(autouse=True)
def _secret(settings: Settings) -> None:
    """This installation knows the secret."""
    settings.SCM_APP_WEBHOOK_SECRET = SECRET


class TestWhoDelivers:
    def test_without_a_secret_nobody_can_deliver_whatever_they_send(
        self, api: Api, settings: Settings
    ) -> None:
        settings.SCM_APP_WEBHOOK_SECRET = ""
        for given in ({}, headers(b"{}", "ping")):
            answer = api.request("POST", PATH, raw=b"not json", headers=given, expect=503)
            assert answer.body["code"] == "scm-webhook-secret-unset"
        assert not WebhookDelivery.objects.exists()

    @pytest.mark.parametrize("missing", ["x-github-delivery", "x-github-event"])
    def test_a_header_that_is_missing_is_named(self, api: Api, missing: str) -> None:
        given = headers(b"{}", "ping")
        del given[missing]
        answer = api.request("POST", PATH, raw=b"{}", headers=given, expect=400)
        assert answer.codes == {missing: "required"}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-github-delivery", "x" * 101),
            ("x-github-delivery", "a b"),
            ("x-github-event", "Push;"),
            ("x-github-event", "é"),
        ],
        ids=["long id", "id with a space", "event with a semicolon", "event beyond ASCII"],
    )
    def test_a_header_that_cannot_be_one_is_named(self, api: Api, name: str, value: str) -> None:
        given = {**headers(b"{}", "ping"), name: value}
        answer = api.request("POST", PATH, raw=b"{}", headers=given, expect=400)
        assert answer.codes == {name: "invalid"}

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "sha256=",
            "sha256=" + "0" * 64,
            "sha1=" + "0" * 40,
            signature(b"{}", "another secret"),
            signature(b'{"a": 1}'),
            signature(b"{}").removeprefix("sha256="),
            signature(b"{}") + "0",
            "sha256=" + "é" * 64,
        ],
        ids=[
            "none",
            "empty",
            "zeros",
            "sha1",
            "another secret",
            "another body",
            "bare",
            "longer",
            "beyond ASCII",
        ],
    )
    def test_a_signature_that_is_wrong_or_missing_is_refused_before_the_body_is_parsed(
        self, api: Api, wrong: str
    ) -> None:
        given = {**headers(b"{}", "ping"), "x-hub-signature-256": wrong}
        if not wrong:
            del given["x-hub-signature-256"]
        for body in (b"{}", b"not json"):
            answer = api.request("POST", PATH, raw=body, headers=given, expect=401)
            assert answer.body["code"] == "scm-webhook-signature-invalid"
            assert SECRET not in answer.content.decode()
        assert not WebhookDelivery.objects.exists()

    def test_the_signature_is_that_of_the_raw_body_whatever_it_holds(self, api: Api) -> None:
        body = b'{ "zen" :  "\\u00e9 \xc3\xa9",\r\n"a":1.0, "a": 2 }\n'
        answer = api.request("POST", PATH, raw=body, headers=headers(body, "ping"), expect=202)
        assert answer.body["status"] == "ignored"

    def test_the_published_example_of_a_signature_is_right(self) -> None:
        """The one in the provider's own documentation."""
        expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        webhooks.require_signature(b"It's a Secret to Everybody", expected, b"Hello, World!")


class TestWhatIsDelivered:
    @pytest.mark.parametrize(
        "body",
        [b"", b"not json", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
        ids=["empty", "text", "array", "null", "string", "not UTF-8", "deep", "long number"],
    )
    def test_a_body_that_is_not_an_object_is_refused(self, api: Api, body: bytes) -> None:
        answer = api.request("POST", PATH, raw=body, headers=headers(body, "ping"), expect=400)
        assert answer.body["code"] == "malformed-json"
        assert not WebhookDelivery.objects.exists()

    def test_another_media_type_is_refused(self, api: Api) -> None:
        body = b"payload=%7B%7D"
        api.request(
            "POST",
            PATH,
            raw=body,
            content_type="application/x-www-form-urlencoded",
            headers=headers(body, "ping"),
            expect=415,
        )

    def test_a_delivery_may_be_larger_than_other_bodies_but_not_without_end(
        self, api: Api, settings: Settings
    ) -> None:
        settings.SVC_MAX_BODY_BYTES = 1000
        settings.SCM_WEBHOOK_MAX_BODY_BYTES = 5000
        body = json.dumps({"zen": "x" * 4000}).encode()
        api.request("POST", PATH, raw=body, headers=headers(body, "ping"), expect=202)
        body = json.dumps({"zen": "x" * 6000}).encode()
        answer = api.request("POST", PATH, raw=body, headers=headers(body, "ping"), expect=413)
        assert answer.body["code"] == "body-too-large"
        assert WebhookDelivery.objects.count() == 1

    def test_a_delivery_may_be_as_large_where_the_api_is_below_a_prefix(
        self, settings: Settings
    ) -> None:
        settings.SVC_MAX_BODY_BYTES = 1000
        body = json.dumps({"zen": "x" * 4000}).encode()
        answer = Client().generic(
            *("POST", PATH, body, "application/json"),
            headers=headers(body, "ping"),
            SCRIPT_NAME="/below",
        )
        assert (answer.status_code, answer.request["SCRIPT_NAME"]) == (202, "/below")

    def test_texts_that_the_database_cannot_hold_do_no_harm(self, api: Api) -> None:
        payload = {
            "action": "re\0named",
            "repository": {"id": 2**70, "full_name": "\ud800", "private": float("nan")},
            "installation": {"id": 10**30, "account": {"login": "a\0b"}},
        }
        assert deliver(api, "repository", payload).body["status"] == "ignored"

    def test_only_what_may_be_acted_upon_is_kept(self, api: Api) -> None:
        payload = {
            **CREATED,
            "sender": {"login": "somebody", "email": "somebody@example.org"},
            "repositories": [{"id": number, "name": "x"} for number in range(1000)],
        }
        deliver(api, "installation", payload)
        kept = json.dumps(WebhookDelivery.objects.get().payload)
        assert "somebody" not in kept
        assert len(kept) < 1000

    def test_every_published_example_is_accepted(self, api: Api) -> None:
        statuses: dict[str, set[str]] = {}
        for pairs in examples().values():
            for event, payload in pairs:
                answer = deliver(api, event, payload)
                statuses.setdefault(event, set()).add(answer.body["status"])
        assert sum(map(len, examples().values())) == 726
        assert {event for event, found in statuses.items() if "failed" in found} == set()
        assert statuses["installation"] == {"processed"}
        assert statuses["push"] == statuses["github_app_authorization"] == {"ignored"}
        assert set(Installation.objects.values_list("external_id", flat=True)) >= {2, 957387}

    def test_every_published_example_is_accepted_while_the_provider_knows_none_of_them(
        self, api: Api, provider: FakeProvider
    ) -> None:
        for event, payload in examples()["api.github.com"]:
            assert deliver(api, event, payload).body["status"] in ("processed", "ignored")
        assert not Installation.objects.exists()
        assert provider.requests


class TestOnce:
    def test_a_delivery_counts_once(self, api: Api, provider: FakeProvider) -> None:
        provider.install("app", id=7)
        first = deliver(api, "installation", CREATED, delivery_id="one")
        asked = len(provider.requests)
        again = deliver(api, "installation", CREATED, delivery_id="one")
        assert first.body == again.body == {"deliveryId": "one", "status": "processed"}
        assert len(provider.requests) == asked > 0
        assert WebhookDelivery.objects.count() == 1

    def test_a_delivery_that_failed_is_applied_when_it_comes_again(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        sound, provider.override = provider.override, _down
        assert deliver(api, "installation", CREATED, delivery_id="one").body["status"] == "failed"
        failed = WebhookDelivery.objects.get()
        assert "503" in failed.error
        provider.override = sound
        answer = deliver(api, "installation", CREATED, delivery_id="one")
        assert answer.body["status"] == "processed"
        assert WebhookDelivery.objects.get().error == ""
        assert Installation.objects.get().account_login == "octo-org"

    def test_a_delivery_that_a_crash_left_undone_is_applied_when_it_comes_again(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        left_undone("one")
        answer = deliver(api, "installation", CREATED, delivery_id="one")
        assert answer.body["status"] == "processed"
        assert Installation.objects.exists()

    def test_an_error_that_nobody_foresaw_leaves_a_failed_delivery(
        self, api: Api, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> bool:
            raise KeyError("the payload's own secret")

        monkeypatch.setattr(webhooks, "apply_event", broken)
        assert deliver(api, "installation", CREATED).body["status"] == "failed"
        assert WebhookDelivery.objects.get().error == "An internal error (KeyError)."

    def test_an_operator_can_have_any_delivery_applied_again(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        deliver(api, "installation", CREATED)
        provider.installations[7].login = "new-name"
        assert webhooks.apply_delivery(WebhookDelivery.objects.get().pk).status == "processed"
        assert Installation.objects.get().account_login == "new-name"
        sound, provider.override = provider.override, _down
        assert webhooks.apply_delivery(WebhookDelivery.objects.get().pk).status == "failed"
        provider.override = sound
        assert webhooks.apply_delivery(WebhookDelivery.objects.get().pk).status == "processed"

    def test_a_delivery_that_waited_asks_nothing_that_was_asked_since(
        self, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        left_undone("left", minutes=2)
        import_installation(7, owner_user_id=OWNER)
        asked = len(provider.requests)
        webhooks.keep_deliveries(NEVER)
        assert WebhookDelivery.objects.get().status == "processed"
        assert len(provider.requests) == asked


def _down(_: object) -> Any:
    def answer(request: Any) -> None:
        request.send_response(503)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def left_undone(
    delivery_id: str, *, minutes: int = 0, status: str = "received", event: str = "installation"
) -> WebhookDelivery:
    """Leave a delivery as a process does that dies right after it stored it."""
    left = WebhookDelivery.objects.create(
        delivery_id=delivery_id,
        event=event,
        action="created",
        external_installation_id=7,
        payload=CREATED,
        status=status,
    )
    moment = Now() - timedelta(minutes=minutes)
    WebhookDelivery.objects.filter(pk=left.pk).update(received_at=moment, processed_at=moment)
    return left


class TestUpkeep:
    def test_what_was_left_undone_is_taken_up(self, provider: FakeProvider) -> None:
        provider.install("app", id=7)
        left = left_undone("left", minutes=2)
        webhooks.keep_deliveries(NEVER)
        left.refresh_from_db()
        assert left.status == "processed"
        assert Installation.objects.exists()

    def test_what_has_just_come_is_left_to_who_is_at_it(self, provider: FakeProvider) -> None:
        provider.install("app", id=7)
        left = left_undone("left")
        webhooks.keep_deliveries(NEVER)
        left.refresh_from_db()
        assert left.status == "received"

    def test_what_failed_is_tried_again_for_a_day(self, provider: FakeProvider) -> None:
        provider.install("app", id=7)
        recent = left_undone("recent", minutes=10, status="failed")
        old = left_undone("old", minutes=60 * 30, status="failed")
        webhooks.keep_deliveries(NEVER)
        recent.refresh_from_db()
        old.refresh_from_db()
        assert (recent.status, old.status) == ("processed", "failed")

    def test_old_deliveries_are_deleted(self, settings: Settings) -> None:
        settings.SCM_DELIVERY_KEEP_MS = 3_600_000
        left_undone("old", minutes=61, status="processed")
        left_undone("new", minutes=59, status="processed")
        assert webhooks.keep_deliveries(NEVER) == 1
        assert WebhookDelivery.objects.get().delivery_id == "new"


@pytest.mark.django_db(transaction=True)
class TestAtTheSameTime:
    def test_duplicates_at_the_same_time_are_applied_once(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)

        def send(_: int) -> str:
            try:
                answer = deliver(Api(), "installation", CREATED, delivery_id="one")
                return str(answer.body["status"])
            finally:
                connection.close()

        with ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(send, range(16)))
        assert statuses <= {"processed", "received"}
        assert WebhookDelivery.objects.get().status == "processed"
        assert provider.paths().count("GET /app/installations/7") == 1

    def test_what_another_process_is_acting_upon_is_left_to_it(
        self, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        left = left_undone("left", minutes=2)
        held, done = threading.Event(), threading.Event()

        def act() -> None:
            try:
                with try_advisory_lock(f"scm-delivery-{left.pk}") as mine:
                    assert mine
                    held.set()
                    done.wait(LONG_WAIT)
            finally:
                held.set()
                connection.close()

        other = threading.Thread(target=act)
        other.start()
        try:
            assert held.wait(LONG_WAIT)
            assert webhooks.apply_delivery(left.pk).status == "received"
            webhooks.keep_deliveries(NEVER)
            assert provider.paths() == []
        finally:
            done.set()
            other.join()
        assert webhooks.apply_delivery(left.pk).status == "processed"

    def test_a_burst_of_events_asks_the_provider_for_what_is_new_only(
        self, api: Api, provider: FakeProvider
    ) -> None:
        provider.install("app", id=7)
        first_is_asked, others_are_stored = threading.Event(), threading.Event()

        def wait(_: object) -> None:
            first_is_asked.set()
            assert others_are_stored.wait(LONG_WAIT)

        def send(number: int) -> str:
            try:
                payload = {**CREATED, "action": "edited"}
                answer = deliver(Api(), "repository", payload, delivery_id=f"d{number}")
                return str(answer.body["status"])
            finally:
                connection.close()

        provider.after = wait
        with ThreadPoolExecutor(6) as pool:
            first = pool.submit(send, 0)
            assert first_is_asked.wait(LONG_WAIT)
            others = [pool.submit(send, number) for number in range(1, 6)]
            eventually(lambda: WebhookDelivery.objects.count() == 6, what="all are stored")
            others_are_stored.set()
            assert first.result() == "processed"
            for other in others:
                other.result()
        for number in range(1, 6):
            send(number)
        assert set(WebhookDelivery.objects.values_list("status", flat=True)) == {"processed"}
        # The first answer was asked for before the others came, the second one told them all.
        assert provider.paths().count("GET /app/installations/7") == 2

    def test_a_provider_that_hangs_takes_two_threads_at_the_most(
        self, api: Api, provider: FakeProvider
    ) -> None:
        hang = threading.Event()
        provider.after = lambda _: assert_set(hang)

        def send(number: int) -> str:
            try:
                payload = {**CREATED, "installation": {**CREATED["installation"], "id": number}}
                answer = deliver(Api(), "installation", payload, delivery_id=f"d{number}")
                return str(answer.body["status"])
            finally:
                connection.close()

        for number in (7, 8):
            provider.install("app", id=number)
        with ThreadPoolExecutor(2) as pool:
            hanging = [pool.submit(send, 7), pool.submit(send, 8)]
            eventually(lambda: len(provider.requests) == 2, what="both ask the provider")
            third = deliver(api, "installation", CREATED, delivery_id="third")
            assert third.body == {"deliveryId": "third", "status": "received"}
            hang.set()
            assert [each.result() for each in hanging] == ["processed", "processed"]
        WebhookDelivery.objects.update(received_at=Now() - timedelta(minutes=2))
        webhooks.keep_deliveries(NEVER)
        assert WebhookDelivery.objects.get(delivery_id="third").status == "processed"


def assert_set(event: threading.Event) -> None:
    assert event.wait(LONG_WAIT)
