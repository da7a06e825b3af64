"""The admin's start page: what is queued, building, ready, failed since when, and who does what."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.live_server_helper import LiveServer

from builds import start_page as overview
from controlplane.work.models import Heartbeat
from runs.models import Run
from tests.conftest import OWNER, Api
from tests.stack.browser import Page, browser
from workspaces.models import (
    Attempt,
    BuildJob,
    RuntimeInstance,
    Sandbox,
    Transition,
    Workspace,
)

STALE = timedelta(minutes=20)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a browser of the test's own."""
    with browser(tmp_path / "profile") as tab:
        yield tab


def staff(*permissions: str) -> Client:
    """Return somebody who may see what ``permissions`` name; everything without any."""
    users = get_user_model().objects
    name = uuid.uuid4().hex[:8]
    client = Client()
    if permissions:
        user = users.create_user(name, password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    else:
        user = users.create_superuser(name, password="x")
    client.force_login(user)
    return client


class House:
    """Workspaces in every state, and workers."""

    def __init__(self, api: Api, body: dict[str, Any]) -> None:
        self._api = api
        self._body = body

    def queued(self, name: str, *, since: timedelta = timedelta(0)) -> BuildJob:
        """Ask for a workspace that nobody builds yet."""
        answer = self._api.post("/v1/workspaces", {**self._body, "name": name}).body
        BuildJob.objects.filter(pk=answer["jobId"]).update(queued_at=Now() - since)
        return BuildJob.objects.select_related("attempt").get(pk=answer["jobId"])

    def building(self, name: str, worker_id: str) -> BuildJob:
        """Have a worker at a job."""
        job = self.queued(name)
        BuildJob.objects.filter(pk=job.pk).update(
            status="running",
            worker_id=worker_id,
            claimed_at=Now() - timedelta(minutes=4),
            lease_expires_at=Now() + timedelta(minutes=1),
            attempt_count=2,
        )
        return job

    def ready(self, name: str) -> BuildJob:
        """Have a workspace that runs."""
        job = self.queued(name)
        RuntimeInstance.objects.create(
            run_id=job.attempt.run_id,
            attempt=job.attempt,
            status="running",
            resource_id="c0ffee",
            reference=f"svc-{job.attempt.run_id}",
            endpoint="ssh://somewhere",
            launched_at=Now() - timedelta(hours=3),
        )
        self._finish(job, "succeeded", "ready")
        return job

    def failed(self, name: str, code: str) -> BuildJob:
        """Have a workspace that came to nothing."""
        job = self.queued(name)
        self._finish(job, "failed", "failed", error_code=code)
        return job

    def ending(self, name: str, kind: str, waits_for: str = "") -> None:
        """Have something asked for that is not done."""
        attempt = self.failed(name, "x").attempt
        Sandbox.objects.filter(pk=attempt.sandbox_id).update(status="cancelled")
        Transition.objects.create(
            workspace_id=attempt.workspace_id,
            kind=kind,
            cause="user",
            requested_by=OWNER,
            requested_at=Now() - timedelta(hours=6),
            waiting_code=waits_for,
            waiting_message="It waits." if waits_for else "",
        )

    @staticmethod
    def _finish(job: BuildJob, status: str, surfaced: str, **values: str) -> None:
        ended = Now() - timedelta(days=2)
        digest = {"published_digest": "sha256:1"} if status == "succeeded" else {}
        BuildJob.objects.filter(pk=job.pk).update(
            status=status, finished_at=ended, error_message="It broke.", **values, **digest
        )
        Attempt.objects.filter(pk=job.attempt_id).update(status=status, finished_at=ended, **values)
        Sandbox.objects.filter(pk=job.attempt.sandbox_id).update(status=surfaced)

    @staticmethod
    def worker(worker_id: str, *, silent: timedelta = timedelta(0), draining: bool = False) -> None:
        """Have a build worker."""
        Heartbeat.objects.create(
            kind=Heartbeat.Kind.BUILD,
            worker_id=worker_id,
            hostname="builder",
            pid=77,
            capacity=2,
            draining=draining,
            seen_at=Now() - silent,
        )


@pytest.fixture
def house(api: Api, request_body: dict[str, Any]) -> House:
    """A control plane with something in it."""
    return House(api, request_body)


def section(html: str, name: str) -> str:
    """Return one section of the page as text."""
    found = re.search(rf'<section id="overview-{name}">(.*?)</section>', html, re.DOTALL)
    assert found is not None, f"there is no {name} in the page"
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found.group(1)))


def start_page(client: Client) -> str:
    answer = client.get("/admin/")
    assert answer.status_code == 200
    return answer.content.decode().replace("\xa0", " ")


@pytest.mark.django_db
def test_it_shows_each_state_with_since_when(house: House) -> None:
    waiting = house.queued("waiting-long", since=timedelta(hours=5, minutes=1))
    house.queued("waiting")
    house.building("at-work", "builder-77-aa")
    house.ready("in-use")
    house.failed("broken", "build-command-failed")
    html = start_page(staff())

    queued = section(html, "queued")
    assert queued.index("waiting-long") < queued.rindex("waiting ")
    assert "5 hours" in queued
    assert OWNER in queued
    assert str(waiting.pk) in queued
    building = section(html, "building")
    assert "at-work" in building
    assert "4 minutes" in building
    assert "building, try 2 by builder-77-aa" in building
    assert "in-use" in section(html, "ready")
    assert "3 hours" in section(html, "ready")
    failed = section(html, "failed")
    assert "broken" in failed
    assert "build-command-failed" in failed
    assert "2 days" in failed
    assert "broken" not in queued + building


@pytest.mark.django_db
def test_failures_of_deleted_workspaces_are_nobodys_concern(house: House) -> None:
    job = house.failed("swept-away", "build-command-failed")
    for number in range(overview.SHOWN + 1):
        house.failed(f"broken-{number}", "x")
    Workspace.objects.filter(pk=job.attempt.workspace_id).update(deleted_at=Now())
    superseded = house.failed("mended", "x").attempt
    again = Sandbox.objects.create(
        workspace_id=superseded.workspace_id,
        owner_user_id=OWNER,
        registry_id="default",
        repository="a/b",
        tag="c",
        spec={},
    )
    Workspace.objects.filter(pk=superseded.workspace_id).update(latest_sandbox=again)
    listing = overview.failed()
    assert listing.number == overview.SHOWN + 1
    shown = section(start_page(staff()), "failed")
    assert "swept-away" not in shown
    assert "mended" not in shown
    for where, number in ((listing.where, listing.number), ("state=history", 2)):
        listed = staff().get(f"/admin/workspaces/sandbox/?{where}")
        assert listed.context["cl"].result_count == number


@pytest.mark.django_db
def test_all_of_what_is_building_is_what_workers_are_at(house: House) -> None:
    house.queued("waiting")
    house.building("built", "builder-77-aa")
    launched = house.building("launched", "builder-77-aa")
    BuildJob.objects.filter(pk=launched.pk).update(
        status="succeeded", published_digest="sha256:1", finished_at=Now()
    )
    listing = overview.building()
    assert listing.number == 2
    listed = staff().get(f"/admin/workspaces/buildjob/?{listing.where}")
    assert listed.context["cl"].result_count == 2


@pytest.mark.django_db
def test_what_is_building_for_the_longest_time_comes_first(house: House) -> None:
    for number in range(overview.SHOWN + 1):
        job = house.building(f"built-{number}", "builder-77-aa")
        BuildJob.objects.filter(pk=job.pk).update(
            claimed_at=Now() - timedelta(minutes=number),
            lease_expires_at=Now() + timedelta(minutes=1 + number),
        )
    names = [line.workspace.name for line in overview.building().lines]
    assert names == [f"built-{number}" for number in range(overview.SHOWN, 0, -1)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    ["login/", "", "workspaces/workspace/", "work/heartbeat/engines/", "accounts/profile/add/"],
)
def test_no_page_has_a_browser_ask_for_an_icon(path: str) -> None:
    client = Client() if path == "login/" else staff()
    answer = client.get(f"/admin/{path}")
    assert answer.status_code == 200
    assert answer.content.count(b'<link rel="icon" href="data:,">') == 1


@pytest.mark.django_db
def test_it_shows_which_worker_does_what(house: House) -> None:
    house.worker("builder-77-aa")
    house.worker("builder-77-bb", draining=True)
    house.worker("builder-77-cc", silent=timedelta(hours=1))
    house.building("at-work", "builder-77-aa")
    job = house.ready("in-use")
    Heartbeat.objects.create(
        kind=Heartbeat.Kind.RUN,
        worker_id="recorder-1-aa",
        hostname="recorder",
        pid=8,
        capacity=64,
        seen_at=Now(),
    )
    Run.objects.filter(pk=job.attempt.run_id).update(
        status="running",
        worker_id="recorder-1-aa",
        claimed_at=Now(),
        lease_expires_at=Now() + timedelta(minutes=1),
    )
    html = start_page(staff())
    workers = section(html, "build-workers")
    assert re.search(r"alive .{0,40}at-work \(1 of 2\)", workers)
    assert re.search(r"draining .{0,40}nothing \(0 of 2\)", workers)
    assert "silent for 1 hour" in workers
    assert "1 run of 64 , 0 sessions" in section(html, "run-workers")


@pytest.mark.django_db
def test_it_shows_what_is_to_end_and_what_that_waits_for(house: House) -> None:
    house.ending("unwanted", "delete", "other-engine")
    house.ending("resting", "stop")
    ending = section(start_page(staff("view_transition")), "ending")
    assert "unwanted" in ending
    assert "6 hours" in ending
    assert "delete: other-engine. It waits." in ending
    assert "resting" in ending
    Transition.objects.update(finished_at=Now())
    assert "None." in section(start_page(staff("view_transition")), "ending")
    listed = staff().get("/admin/workspaces/transition/?finished_at__isnull=True")
    assert (listed.status_code, listed.context["cl"].result_count) == (200, 0)


@pytest.mark.django_db
def test_without_workers_it_says_what_that_means() -> None:
    html = start_page(staff())
    assert "nothing is built until one is started" in section(html, "build-workers")
    assert "nothing is run or recorded until one" in section(html, "run-workers")
    assert "None." in section(html, "queued")


@pytest.mark.django_db
def test_what_was_deleted_or_started_again_has_not_failed_any_more(house: House) -> None:
    house.failed("still-broken", "build-command-failed")
    deleted, again = house.failed("deleted", "x"), house.failed("again", "x")
    Workspace.objects.filter(pk=deleted.attempt.workspace_id).update(deleted_at=Now())
    later = Sandbox.objects.get(pk=again.attempt.sandbox_id)
    later.pk, later.status = uuid.uuid4(), "queued"
    later.save(force_insert=True)
    Workspace.objects.filter(pk=later.workspace_id).update(latest_sandbox=later)
    assert [line.workspace.name for line in overview.failed().lines] == ["still-broken"]
    assert overview.failed().number == 1


@pytest.mark.django_db
def test_the_numbers_come_first_and_those_that_are_wrong_stand_out(house: House) -> None:
    house.queued("waiting")
    house.worker("builder-77-cc", silent=timedelta(hours=1))
    numbers = re.compile(r'<b( class="wrong")?>(\d+)</b> ([a-z ]+)')
    assert [
        (bool(wrong), number, name)
        for wrong, number, name in numbers.findall(staff().get("/admin/").content.decode())
    ] == [
        (False, "1", "queued"),
        (False, "0", "building"),
        (False, "0", "ready"),
        (False, "0", "failed"),
        (False, "0", "ending"),
        (True, "0", "build workers alive"),
        (True, "0", "run workers alive"),
    ]


@pytest.mark.django_db
def test_people_see_what_they_may_see(house: House) -> None:
    house.queued("a-secret-name")
    house.worker("builder-77-aa")
    html = start_page(staff("view_heartbeat"))
    assert "a-secret-name" not in html
    assert "process 77" in section(html, "build-workers")
    assert 'id="overview-queued"' not in html
    html = start_page(staff("view_sandbox"))
    assert 'id="overview-failed"' in html
    assert 'id="overview-build-workers"' not in html


@pytest.mark.django_db
def test_names_are_text_whatever_is_in_them(house: House) -> None:
    house.queued("<script>alert(1)</script>")
    html = start_page(staff())
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


@pytest.mark.django_db
def test_it_costs_the_same_however_much_there_is(house: House) -> None:
    client = staff()

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            start_page(client)
        return len(queries)

    for name in ("a", "b"):
        house.queued(name)
        house.building(name, name)
        house.ready(name)
        house.failed(name, "x")
        house.ending(f"e-{name}", "stop")
        house.worker(name)
    before = asked()
    for number in range(overview.SHOWN):
        house.queued(f"q{number}")
        house.failed(f"f{number}", "x")
        house.ending(f"e{number}", "stop")
        house.worker(f"w{number}")
    assert asked() <= before
    assert overview.queued().more
    assert "All of them" in section(start_page(client), "queued")


@pytest.mark.django_db
def test_very_many_are_counted_no_further_than_matters(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "COUNTED", 2)
    for number in range(4):
        house.queued(f"q{number}")
    assert overview.queued().counted == "2+"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_it_looks_as_it_should_in_a_browser(
    house: House, page: Page, live_server: LiveServer, tmp_path: Path
) -> None:
    house.queued("waiting", since=timedelta(hours=5))
    house.building("at-work", "builder-77-aa")
    house.ready("in-use")
    house.failed("broken", "build-command-failed")
    house.ending("unwanted", "delete", "other-engine")
    house.worker("builder-77-aa")
    house.worker("builder-77-cc", silent=timedelta(hours=1))
    name = django_settings.SESSION_COOKIE_NAME
    page.set_cookie(name, staff().cookies[name].value, live_server.url)
    page.open(f"{live_server.url}/admin/")

    assert page.console == []
    headings = page.evaluate(
        "[...document.querySelectorAll('#overview h2')].map(h => h.innerText.trim())"
    )
    assert headings == [
        *("Last 24 hours", "Queued 1", "Building 1", "Ready 1", "Failed 1", "Ending 1"),
        *("Build workers 2", "Run workers 0"),
    ]
    # Nothing is wider than the page, long ids included.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("document.querySelectorAll('#content-main .module').length") > 3
    page.screenshot(tmp_path / "start.png")
    assert (tmp_path / "start.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_pages_are_as_wide_as_a_telephone(
    house: House, page: Page, live_server: LiveServer
) -> None:
    house.ready("in-use")
    house.worker("builder-77-aa", silent=timedelta(hours=1))
    engine = "VGKP:QMH4:LZRA:7Q2X:UJ6N:PRST:3ABC:DEFG:HIJK:LMNO:PQRS:TUVW"
    RuntimeInstance.objects.update(engine_id=engine)
    name = django_settings.SESSION_COOKIE_NAME
    page.set_cookie(name, staff().cookies[name].value, live_server.url)
    for path in ("/admin/", f"/admin/work/heartbeat/engines/?engine={engine}", "/docs"):
        page.open(f"{live_server.url}{path}", width=400)
        if path == "/docs":
            page.wait_for("document.querySelectorAll('.opblock-tag small').length > 3")
            narrowest = (
                "Math.min(...[...document.querySelectorAll('.opblock-tag small')]"
                ".map(each => each.getBoundingClientRect().width))"
            )
            assert page.evaluate(narrowest) > 200
        # The table of engines is wider, and has a scroll bar of its own.
        inner = "[...document.querySelectorAll('#content *')].filter(each => !each.closest("
        wide = f"{inner}'#engines-list')).map(each => each.getBoundingClientRect().right)"
        assert page.evaluate(f"Math.max(0, ...{wide}) <= 400"), path
    assert page.console == []
