"""The samples of each minute and the charts of the admin's start page that are drawn from them."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.live_server_helper import LiveServer

from builds.charts import STEP_SECONDS, charts
from builds.minute_samples import MachineUsage, MinuteSampler
from controlplane.metrics import samples
from controlplane.metrics.models import MinuteSample
from controlplane.work.models import Heartbeat
from tests.conftest import Api
from tests.factories import make_worker
from tests.stack.browser import browser
from tests.support.engines import make_engine
from workspaces import minute_counts
from workspaces.models import Attempt, RuntimeInstance, WorkspaceEvent
from workspaces.services import fail_attempt, fail_runtime

STALE = timedelta(minutes=20)
HOUR = timedelta(hours=1)


@pytest.fixture
def attempt(api: Api, request_body: dict[str, Any]) -> Attempt:
    """An attempt that was just asked for."""
    answer = api.post("/v1/workspaces", {**request_body, "name": "sampled"}).body
    return Attempt.objects.get(jobs__pk=answer["jobId"])


@pytest.fixture
def superuser() -> Client:
    """Somebody who may see everything."""
    client = Client()
    user = get_user_model().objects.create_superuser(uuid.uuid4().hex[:8], password="x")
    client.force_login(user)
    return client


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (moment,) = cursor.fetchone()
    assert isinstance(moment, datetime)
    return moment


def sample(minutes_ago: int, values: dict[str, Any], source: str = "") -> None:
    samples.store(samples.last_minute() - timedelta(minutes=minutes_ago), source, values)


def points(name: str) -> dict[str, list[float | None]]:
    return dict(next(chart for chart in charts() if chart["name"] == name)["series"])


@pytest.mark.django_db
def test_a_start_counts_with_its_seconds_in_the_minute_in_which_it_was_ready(
    attempt: Attempt,
) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(created_at=Now() - timedelta(seconds=90))
    event = WorkspaceEvent.objects.create(
        workspace_id=attempt.workspace_id,
        attempt=attempt,
        type=WorkspaceEvent.Type.RUNTIME_RUNNING,
        message="The workspace runs.",
    )
    event.refresh_from_db()
    moment = event.occurred_at
    [seconds] = minute_counts.start_seconds(moment, moment + samples.MINUTE)
    assert 90 <= seconds < 150
    assert minute_counts.start_seconds(moment - samples.MINUTE, moment) == []


@pytest.mark.django_db
def test_an_attempt_that_failed_with_its_runtime_counts_once(attempt: Attempt) -> None:
    before = now()
    RuntimeInstance.objects.filter(run_id=attempt.run_id).delete()
    fail_runtime(attempt, code="step-failed", message="It broke.")
    fail_attempt(attempt, code="step-failed", message="It broke.")
    assert minute_counts.failures(before - HOUR, before + HOUR) == {"step-failed": 1}
    assert minute_counts.failures(before - HOUR, before - samples.MINUTE) == {}


@pytest.mark.django_db
def test_a_minute_is_sampled_once_and_kept_for_a_day() -> None:
    minute = samples.last_minute()
    samples.store(minute - samples.KEPT - samples.MINUTE, "", {"start_seconds": [1]})
    samples.store(minute - samples.KEPT + samples.MINUTE, "", {"start_seconds": [1]})
    for name in ("local", "second"):
        make_engine(name)
        slots = {"build": {"capacity": 2, "in_use": 1}}
        Heartbeat.objects.filter(pk=make_worker(name, engine=name).pk).update(slots=slots)
    assert samples.take(minute, stale=STALE)
    assert not samples.take(minute, stale=STALE)
    assert MinuteSample.objects.count() == 2
    values = MinuteSample.objects.get(minute=minute).values
    assert set(values) == {*samples.GAUGES, "start_seconds", "failures"}
    assert values["svc_build_slots_in_use"] == {"start": 0, "build": 2}
    assert set(values["svc_run_slots"]) == {"boot", "one-shot", "interactive"}


@pytest.mark.django_db
def test_the_sample_of_another_worker_is_left_as_it_is() -> None:
    minute = samples.last_minute()
    samples.store(minute, "engine", {"memory": 0.5, "cpu": 0.25})
    samples.store(minute, "engine", {"memory": 0.9, "cpu": 0.9})
    assert MinuteSample.objects.get(source="engine").values == {"memory": 0.5, "cpu": 0.25}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("docker_host", "sources"),
    [("unix:///run/docker.sock", ["", "ENGINE"]), ("tcp://engine:2376", [""])],
)
def test_the_machine_is_measured_where_the_worker_runs_on_it(
    docker_host: str, sources: list[str]
) -> None:
    sampler = MinuteSampler(engine_id=lambda: "ENGINE", docker_host=docker_host, stale=STALE)
    sampler.take()
    taken = MinuteSample.objects.order_by("source")
    assert sorted({each.source for each in taken}) == sources
    for machine in taken.exclude(source=""):
        assert 0 < machine.values["memory"] < 1
        assert 0 <= machine.values["cpu"] <= 1


def test_time_that_passed_waiting_for_a_disk_is_not_in_use(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemAvailable: 250 kB\nHugePages_Free: 0\n"
    )
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n")
    machine = MachineUsage(tmp_path)
    (tmp_path / "stat").write_text("cpu  110 0 110 760 110 5 5 0 90 0\ncpu0 1 1 1 1\n")
    assert machine.measure() == {"memory": 0.75, "cpu": 0.3}
    assert machine.measure()["cpu"] == 0.0


@pytest.mark.parametrize(
    ("later", "share"), [("110 0 100 700 95 0 0 0", 1.0), ("99 0 100 705 100 0 0 0", 0.0)]
)
def test_a_share_is_one_although_the_kernel_takes_ticks_back(
    tmp_path: Path, later: str, share: float
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0\n")
    machine = MachineUsage(tmp_path)
    (tmp_path / "stat").write_text(f"cpu  {later}\n")
    assert machine.measure()["cpu"] == share


@pytest.mark.django_db
def test_the_percentiles_are_of_all_starts_of_a_step() -> None:
    first = samples.last_minute() - HOUR
    first -= timedelta(seconds=first.timestamp() % STEP_SECONDS)
    for minute in range(10):
        values = {"start_seconds": [minute * 2 + 1, minute * 2 + 2]}
        samples.store(first + minute * samples.MINUTE, "", values)
    assert points("starts") == {"starts": [20]}
    assert points("start-time") == {"p50": [10], "p95": [19]}


@pytest.mark.django_db
def test_a_time_without_samples_is_a_gap_and_one_without_starts_is_zero() -> None:
    sample(60, {"start_seconds": [2.5]})
    sample(0, {"start_seconds": []})
    starts = points("starts")["starts"]
    assert (starts[0], starts[-1]) == (1, 0)
    assert set(starts[1:-1]) == {None}
    assert points("start-time")["p50"][-1] is None


@pytest.mark.django_db
def test_only_the_most_frequent_failures_have_a_line_of_their_own() -> None:
    sample(0, {"failures": {f"code-{number}": 10 - number for number in range(8)}})
    assert points("failures") == {
        **{f"code-{number}": [10 - number] for number in range(5)},
        "others": [5 + 4 + 3],
    }


@pytest.mark.django_db
def test_a_page_of_a_whole_day_takes_one_question() -> None:
    for minute in range(0, 24 * 60, 7):
        sample(minute, {"start_seconds": [1], "svc_run_slots_in_use": {"boot": 1}})
        sample(minute, {"memory": 0.5, "cpu": 0.5}, "engine-of-this-machine")
    with CaptureQueriesContext(connection) as asked:
        drawn = charts()
    assert len(asked) == 1
    assert 143 <= len(drawn[0]["times"]) <= 146
    assert list(points("memory")) == ["engine-of-th"]


@pytest.mark.django_db
def test_without_samples_the_page_says_who_takes_them(superuser: Client) -> None:
    html = superuser.get("/admin/").content.decode()
    assert "There are no samples yet. A build worker takes one each minute." in html
    assert re.search(r'<script id="charts-data" type="application/json">\[\]</script>', html)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_draws_every_chart_within_its_width(
    superuser: Client, live_server: LiveServer, tmp_path: Path, width: int
) -> None:
    for minute in range(0, 300, 3):
        lanes = {"start": minute % 4, "build": minute % 2}
        sample(
            minute,
            {
                "start_seconds": [1 + minute % 5, 2],
                "failures": {"build-command-failed": minute % 2},
                "svc_build_queue_oldest_seconds": minute % 50,
                "svc_build_slots_in_use": lanes,
                "svc_run_slots_in_use": {"boot": 3, "one-shot": 1, "interactive": 0},
            },
        )
        sample(minute, {"memory": 0.4, "cpu": minute % 10 / 10}, "ENGINE")
    with browser(tmp_path / "profile") as page:
        cookie = superuser.cookies[settings.SESSION_COOKIE_NAME].value
        page.set_cookie(settings.SESSION_COOKIE_NAME, cookie, live_server.url)
        page.open(f"{live_server.url}/admin/", width=width, height=2400)
        drawn = page.evaluate(
            "JSON.stringify([document.getElementById('charts').dataset.drawn,"
            " [...document.querySelectorAll('#charts figure')].map(f => f.id),"
            " document.documentElement.scrollWidth])"
        )
        number, names, scrolled = json.loads(drawn)
        page.screenshot(tmp_path / f"start-{width}.png")
        assert number == "8"
        assert names == [f"chart-{chart['name']}" for chart in charts()]
        assert scrolled <= width
        assert page.console == []
