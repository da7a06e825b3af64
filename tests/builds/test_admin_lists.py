"""The lists of the admin in a browser: what people need of each row is there without scrolling."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models.functions import Now
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from controlplane.work.models import Heartbeat
from runs.models import Run
from tests.conftest import Api
from tests.stack.browser import Page, browser
from tests.support.engines import make_engine
from workspaces.models import Attempt, BuildJob, Engine, RuntimeInstance, Sandbox, Transition

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

LISTS = (
    "workspaces/workspace",
    "workspaces/sandbox",
    "workspaces/attempt",
    "workspaces/buildjob",
    "workspaces/runtimeinstance",
    "workspaces/transition",
    "workspaces/workspaceevent",
    "workspaces/engine",
    "runs/run",
    "work/heartbeat",
)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a browser of the test's own."""
    with browser(tmp_path / "profile") as tab:
        yield tab


@pytest.fixture
def filled(api: Api, request_body: dict[str, Any]) -> None:
    """A row in every list, with values as long as they usually are."""
    body = {**request_body, "repository": "payments/checkout-service", "tag": "feature-4711"}
    body["name"] = "checkout-service-feature"
    answer = api.post("/v1/workspaces", {**body, "ownerUserId": "usr_0123456789abcdef"}).body
    job = BuildJob.objects.select_related("attempt").get(pk=answer["jobId"])
    worker = f"buildhost-{4711}-{uuid.uuid4().hex[:8]}"
    ended = {"status": "failed", "error_code": "build-command-failed", "finished_at": Now()}
    BuildJob.objects.filter(pk=job.pk).update(
        started_at=Now(), worker_id=worker, error_message="It broke.", **ended
    )
    Attempt.objects.filter(pk=job.attempt_id).update(error_message="It broke.", **ended)
    Sandbox.objects.filter(pk=job.attempt.sandbox_id).update(status="failed")
    RuntimeInstance.objects.create(
        run_id=job.attempt.run_id,
        attempt=job.attempt,
        status="stopped",
        adapter="docker",
        resource_id=uuid.uuid4().hex * 2,
        reference=f"svc-{job.attempt.run_id}",
        endpoint="ssh://somewhere",
        engine_id=str(uuid.uuid4()),
        launched_at=Now(),
        finished_at=Now(),
    )
    Transition.objects.create(
        workspace_id=job.attempt.workspace_id,
        kind="delete",
        cause="user",
        requested_by="usr_0123456789abcdef",
        requested_at=Now(),
        waiting_code="adapter-unavailable",
        waiting_message="It waits.",
    )
    Run.objects.filter(pk=job.attempt.run_id).update(
        harness_id="claude-code", started_at=Now(), worker_id=worker
    )
    Heartbeat.objects.create(
        kind="build",
        worker_id=worker,
        hostname="buildhost",
        pid=4711,
        capacity=2,
        seen_at=Now(),
        engine_id=str(uuid.uuid4()),
    )
    for name, state in (("local", "active"), ("second-machine-of-the-team", "leaving")):
        make_engine(name, state=state)
        Engine.objects.filter(pk=name).update(
            url=f"tcp://{name}.machines.example.com:2376",
            engine_id=":".join(uuid.uuid4().hex[at : at + 4].upper() for at in range(0, 32, 3)),
        )


@pytest.mark.usefixtures("filled")
def test_every_list_fits_a_window_of_1280_pixels(
    live_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    session = staff.cookies[settings.SESSION_COOKIE_NAME].value
    page.set_cookie(settings.SESSION_COOKIE_NAME, session, live_server.url)
    too_wide = {}
    for name in LISTS:
        page.open(f"{live_server.url}/admin/{name}/", width=1280, height=700)
        assert page.evaluate("document.querySelectorAll('#result_list tbody tr').length") >= 1
        page.screenshot(tmp_path / f"{name.replace('/', '-')}.png")
        over = page.evaluate(
            "(() => { const r = document.querySelector('.results');"
            " return r.scrollWidth - r.clientWidth; })()"
        )
        if over > 0 or page.evaluate("document.documentElement.scrollWidth") > 1280:
            too_wide[name] = over
    assert too_wide == {}
    assert page.console == []


@pytest.mark.usefixtures("filled")
def test_the_list_of_workspaces_says_why_one_is_not_ready(live_server: LiveServer) -> None:
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    deleting = staff.get("/admin/workspaces/workspace/").content.decode()
    assert '<span title="The workspace is being deleted. Waiting (adapter-unavailable)' in deleting
    assert ">deleting</span>" in deleting
    Transition.objects.update(finished_at=Now())
    failed = staff.get("/admin/workspaces/workspace/").content.decode()
    assert '<span title="It broke.">build-command-failed</span>' in failed
