"""The admin: search, read-only history, and the actions retry, cancel and requeue."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models import Model
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django.fixtures import Settings

from controlplane.work import amqp
from controlplane.work.models import Heartbeat
from runs.models import Run
from tests.accounts.connected import KEY, connect
from tests.factories import LEASE, OWNER, claim, make_job, make_worker
from tests.support import attempt_steps, queues
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import (
    Attempt,
    BuildJob,
    CredentialReference,
    RuntimeInstance,
    Sandbox,
    SandboxRequest,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.django_db

MODELS: list[type[Model]] = [
    Workspace,
    Sandbox,
    Attempt,
    RuntimeInstance,
    WorkspaceEvent,
    BuildJob,
    Heartbeat,
    SandboxRequest,
]
GARBAGE = ["x", "'", '"', '"a', "%", "\\", "é", "{}", "-", "a" * 2000, "01a1fbdb", "a b c", "🙂"]


@pytest.fixture
def staff() -> Client:
    """A signed-in operator."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    return client


def url(model: type[Model], page: str, *args: Any) -> str:
    meta = model._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_{page}", args=args)


def rows(count: int, *, first: int = 0) -> list[BuildJob]:
    """Write ``count`` of everything, numbered from ``first`` on."""
    jobs = []
    for number in range(first, first + count):
        job = make_job()
        RuntimeInstance.objects.create(run_id=job.attempt.run_id, attempt=job.attempt)
        SandboxRequest.objects.create(
            owner_user_id=OWNER, key=f"k{number}", sandbox=job.attempt.sandbox, answer={}
        )
        make_worker(f"worker-{number}")
        jobs.append(job)
    return jobs


def act(client: Client, model: type[Model], action: str, chosen: Sequence[Model]) -> list[str]:
    """Run an action of the list page; return the messages that it shows."""
    data = {"action": action, "_selected_action": [str(row.pk) for row in chosen]}
    answer = client.post(url(model, "changelist"), data, follow=True)
    assert answer.status_code == 200
    return [str(message) for message in answer.context["messages"]]


@pytest.mark.parametrize("model", MODELS)
def test_nobody_looks_at_anything_without_signing_in(model: type[Model]) -> None:
    make_job()
    for page in (url(model, "changelist"), url(model, "change", "x")):
        answer = Client().get(page)
        assert answer.status_code == 302
        assert answer.headers["location"].startswith("/admin/login/")
    client = Client()
    client.force_login(get_user_model().objects.create_user("plain", password="x"))
    assert client.get(url(model, "changelist")).status_code == 302


@pytest.mark.parametrize("model", MODELS)
def test_every_list_and_every_row_can_be_looked_at(staff: Client, model: type[Model]) -> None:
    rows(2)
    listed = staff.get(url(model, "changelist"))
    assert listed.status_code == 200
    assert listed.context["cl"].result_count >= 2
    row = model._default_manager.first()
    assert row is not None
    assert staff.get(url(model, "change", row.pk)).status_code == 200
    assert staff.get(url(model, "history", row.pk)).status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_history_is_read_and_never_written(staff: Client, model: type[Model]) -> None:
    rows(1)
    row = model._default_manager.first()
    assert row is not None
    before = model._default_manager.values().get(pk=row.pk)
    page = staff.get(url(model, "change", row.pk)).content.decode()
    assert 'name="_save"' not in page
    assert not re.search(r'<input type="text"', page)
    data = {"status": "ready", "name": "Changed", "message": "Changed", "_save": "Save"}
    assert staff.post(url(model, "change", row.pk), data).status_code == 403
    assert staff.get(url(model, "add")).status_code == 403
    assert staff.post(url(model, "add"), data).status_code == 403
    assert staff.post(url(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    act_data = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
    staff.post(url(model, "changelist"), act_data)
    assert model._default_manager.values().get(pk=row.pk) == before


@pytest.mark.parametrize("model", MODELS)
def test_a_search_for_garbage_finds_nothing_and_does_not_fail(
    staff: Client, model: type[Model]
) -> None:
    rows(1)
    for text in GARBAGE:
        answer = staff.get(url(model, "changelist"), {"q": text})
        assert answer.status_code == 200, text
    assert staff.get(url(model, "changelist"), {"q": "a\x00b"}).status_code in {200, 302}
    unknown = staff.get(url(model, "changelist"), {"q": str(uuid.uuid4())})
    assert unknown.context["cl"].result_count == 0
    assert staff.get(url(model, "change", "garbage")).status_code == 302


def test_rows_are_found_by_the_ids_and_words_people_have(staff: Client) -> None:
    job, _other = rows(2)
    attempt = job.attempt
    sandbox = attempt.sandbox
    searches: list[tuple[type[Model], object]] = [
        (Workspace, attempt.workspace_id),
        (Sandbox, sandbox.pk),
        (Sandbox, attempt.workspace_id),
        (Sandbox, sandbox.repository),
        (Attempt, attempt.pk),
        (Attempt, attempt.run_id),
        (Attempt, attempt.workspace_id),
        (RuntimeInstance, attempt.run_id),
        (BuildJob, job.pk),
        (BuildJob, f"  {str(attempt.pk).upper()} "),
        (BuildJob, attempt.run_id),
        (BuildJob, job.repository),
        (Heartbeat, "worker-0"),
        (SandboxRequest, "k0"),
        (SandboxRequest, sandbox.pk),
    ]
    for model, text in searches:
        found = staff.get(url(model, "changelist"), {"q": str(text)}).context["cl"]
        assert found.result_count == 1, (model, text)
    found = staff.get(url(WorkspaceEvent, "changelist"), {"q": str(attempt.pk)}).context["cl"]
    assert [event.type for event in found.result_list] == ["attempt.queued"]
    both = staff.get(url(Workspace, "changelist"), {"q": OWNER}).context["cl"]
    assert both.result_count == 2


@pytest.mark.parametrize("model", MODELS)
def test_a_list_takes_as_many_queries_with_ten_rows_as_with_one(
    staff: Client, model: type[Model]
) -> None:
    rows(1)
    staff.get(url(model, "changelist"))
    with CaptureQueriesContext(connection) as one:
        staff.get(url(model, "changelist"))
    rows(9, first=1)
    with CaptureQueriesContext(connection) as ten:
        listed = staff.get(url(model, "changelist"))
    assert listed.context["cl"].result_count >= 10
    assert len(ten) == len(one)


@pytest.mark.parametrize("model", [*MODELS, Run])
def test_a_list_renders_as_many_templates_with_ten_rows_as_with_one(
    staff: Client, model: type[Model]
) -> None:
    rows(1)
    staff.get(url(model, "changelist"))
    one = staff.get(url(model, "changelist"))
    rows(9, first=1)
    ten = staff.get(url(model, "changelist"))
    assert ten.context["cl"].result_count >= 10
    names = [[template.name for template in page.templates] for page in (one, ten)]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", ["Mine", '"><script>&amp;', "{} é 🙂 '"])
def test_the_checkbox_of_a_row_is_as_django_renders_it(name: str) -> None:
    workspace = Workspace.objects.create(owner_user_id=OWNER, name=name)
    shown = admin.site.get_model_admin(Workspace)
    checkbox = shown.action_checkbox(workspace)
    assert checkbox == admin.ModelAdmin.action_checkbox(shown, workspace)
    assert f'value="{workspace.pk}"' in checkbox


def test_an_attempt_takes_as_many_queries_with_ten_accounts_as_with_one(
    staff: Client, settings: Settings
) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    attempt = make_job().attempt
    page = url(Attempt, "change", attempt.pk)

    def give(name: str) -> None:
        account_id = connect("claude", name)
        CredentialReference.objects.create(
            attempt=attempt, account_id=account_id, provider="claude"
        )

    give("work-0")
    staff.get(page)
    with CaptureQueriesContext(connection) as one:
        staff.get(page)
    for number in range(1, 10):
        give(f"work-{number}")
    with CaptureQueriesContext(connection) as ten:
        shown = staff.get(page).content.decode()
    assert "claude work-9 of" in shown
    assert len(ten) == len(one)


def test_a_row_shows_its_id_and_its_times(staff: Client) -> None:
    job = claim(make_job())
    page = staff.get(url(BuildJob, "change", job.pk)).content.decode()
    for label in ("Id:", "Lease expires at:", "Queued at:", "Created at:", "Worker id:"):
        assert label in page


def test_a_workspace_shows_its_state_and_leads_to_what_happened(staff: Client) -> None:
    workspace = make_job().attempt.workspace
    page = staff.get(url(Workspace, "change", workspace.pk)).content.decode()
    assert "Status:" in page
    assert "queued" in page
    for name in ("events", "attempts", "runs", "transitions"):
        found = re.search(rf'<a href="([^"]+)">{name}</a>', page)
        assert found, name
        assert str(workspace.pk) in found[1]
        assert staff.get(found[1]).status_code == 200


def test_every_model_with_a_history_is_in_the_admin() -> None:
    assert set(MODELS) <= set(admin.site._registry)


def test_a_blueprint_is_shown_as_text(staff: Client) -> None:
    job = make_job(spec={"harness": {"id": "shell"}, "x": "<script>alert(1)</script>"})
    page = staff.get(url(Sandbox, "change", job.attempt.sandbox_id)).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page


def test_a_failed_sandbox_is_retried(staff: Client, build_queue: str) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="build-command-failed", message="It failed.")
    (message,) = act(staff, Sandbox, "retry", [job.attempt.sandbox])
    newest = BuildJob.objects.latest("id")
    assert newest != job
    assert str(newest.pk) in message
    assert newest.status == "queued"
    assert newest.attempt.requested_by == "ada"
    assert (newest.attempt.relation, newest.attempt.trigger_type) == ("retry", "manual")
    assert Sandbox.objects.get().status == "queued"
    assert Sandbox.objects.get().latest_attempt == newest.attempt
    assert str(newest.pk) in messages_on(build_queue)


def messages_on(queue: str) -> set[str]:
    """Take every message off ``queue`` and return the job ids they carry."""
    found: set[str] = set()
    waiting = queues.depth(django_settings.RABBITMQ_URL, queue, timeout=LONG_WAIT)

    def on_delivery(delivery: amqp.Delivery) -> None:
        found.add(json.loads(delivery.body)["jobId"])
        delivery.ack()
        if len(found) >= waiting:
            consumer.stop()

    consumer = amqp.Consumer(
        django_settings.RABBITMQ_URL,
        amqp.Topology(queue),
        prefetch=100,
        timeout=LONG_WAIT,
        name="test",
        on_delivery=on_delivery,
        on_tick=lambda: None,
        tick=0.05,
    )
    if waiting:
        consumer.run()
    return found


def test_a_sandbox_that_is_not_over_is_not_retried(staff: Client) -> None:
    job = make_job()
    (message,) = act(staff, Sandbox, "retry", [job.attempt.sandbox])
    assert "only one that has ended" in message
    assert BuildJob.objects.count() == 1


def test_a_sandbox_that_was_superseded_is_not_retried(staff: Client) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="x", message="It failed.")
    newer = Sandbox.objects.create(
        workspace=job.attempt.workspace,
        owner_user_id=OWNER,
        status="failed",
        registry_id="default",
        repository="a",
        tag="b",
        spec={},
    )
    Workspace.objects.update(latest_sandbox=newer)
    (message,) = act(staff, Sandbox, "retry", [job.attempt.sandbox])
    assert "newer sandbox" in message


def test_a_retry_that_cannot_be_published_is_told(staff: Client, settings: Settings) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="x", message="It failed.")
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    (message,) = act(staff, BuildJob, "retry", [job])
    assert "queue could not be reached" in message
    assert BuildJob.objects.latest("id").status == "failed"


@pytest.mark.parametrize("model", [Sandbox, BuildJob])
def test_a_queued_job_is_cancelled(staff: Client, model: type[Model]) -> None:
    job = make_job()
    row = job if model is BuildJob else job.attempt.sandbox
    (message,) = act(staff, model, "cancel", [row])
    assert message == f"{row.pk}: cancelled."
    job.refresh_from_db()
    assert (job.status, job.error_message) == ("cancelled", "Cancelled by ada.")
    assert Attempt.objects.get().status == "cancelled"
    assert Sandbox.objects.get().status == "cancelled"
    assert WorkspaceEvent.objects.filter(type="attempt.cancelled").count() == 1
    (message,) = act(staff, model, "cancel", [row])
    assert "there is nothing left to cancel" in message


def test_a_running_job_is_taken_from_its_worker(staff: Client) -> None:
    job = claim(make_job())
    act(staff, BuildJob, "cancel", [job])
    assert not BuildJob.objects.renew(job.fence, lease=LEASE)
    job.refresh_from_db()
    assert job.lease_expires_at is None


def test_a_ready_workspace_is_not_cancelled(staff: Client) -> None:
    job = claim(make_job())
    BuildJob.objects.filter(pk=job.pk).update(
        status="succeeded", finished_at=Now(), lease_expires_at=None, published_digest="sha256:a"
    )
    attempt_steps.await_runtime(job.attempt, published={})
    launched = LaunchedRuntime(adapter="docker", resource_id="a", reference="b", endpoint="c")
    attempt_steps.mark_ready(job.attempt, launched)
    (message,) = act(staff, Sandbox, "cancel", [job.attempt.sandbox])
    assert "there is nothing left to cancel" in message
    assert Sandbox.objects.get().status == "ready"


def test_the_message_of_a_queued_job_is_sent_again(staff: Client, build_queue: str) -> None:
    job = make_job()
    messages_on(build_queue)
    (message,) = act(staff, BuildJob, "requeue", [job])
    assert "sent again" in message
    assert messages_on(build_queue) == {str(job.pk)}


def test_a_job_that_ended_is_not_requeued(staff: Client, build_queue: str) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="x", message="It failed.")
    messages_on(build_queue)
    (message,) = act(staff, BuildJob, "requeue", [job])
    assert "retry it instead" in message
    assert messages_on(build_queue) == set()


def test_a_requeue_without_a_broker_is_told(staff: Client, settings: Settings) -> None:
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    (message,) = act(staff, BuildJob, "requeue", [make_job()])
    assert "queue could not be reached" in message
    assert "nobody:nothing" not in message


def test_an_action_tells_of_every_row(staff: Client) -> None:
    over, open_ = make_job(), make_job()
    fail_unclaimed_job(over, code="x", message="It failed.")
    told = act(staff, BuildJob, "cancel", [over, open_])
    assert len(told) == 2
    assert {line.split(": ")[1] for line in told} == {
        "cancelled.",
        "there is nothing left to cancel.",
    }


def test_whoever_may_only_look_is_offered_no_action_and_cannot_send_one() -> None:
    job = make_job()
    viewer = get_user_model().objects.create_user("vera", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_buildjob"))
    client = Client()
    client.force_login(viewer)
    address = url(BuildJob, "changelist")

    shown = client.get(address)
    client.post(address, {"action": "cancel", "_selected_action": [str(job.pk)]})

    assert shown.status_code == 200
    assert b'value="cancel"' not in shown.content
    job.refresh_from_db()
    assert job.status == BuildJob.Status.QUEUED
