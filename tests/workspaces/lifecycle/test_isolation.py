"""Readiness tells whether workspaces are kept away, and the API listens accordingly."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from controlplane.work.models import Heartbeat
from tests.conftest import Answer, Api
from tests.stack.worker_process import environment
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, Launcher
from workspaces.lifecycle.enforcement.isolation import FRESH, IsolationTask, refuse_wide_bind
from workspaces.models import Engine, NetworkGuardReport

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _on(settings: Settings) -> None:
    settings.SVC_NETWORK_GUARD = "on"


def isolation(answer: Answer) -> tuple[bool, bool, str]:
    (found,) = [check for check in answer.body["checks"] if check["name"] == "isolation"]
    return found["ok"], found["required"], found["detail"]


def worker_of(engine_id: str) -> None:
    Heartbeat.objects.beat(
        f"worker-{engine_id}",
        kind=Heartbeat.Kind.BUILD,
        hostname="here",
        pid=1,
        capacity=1,
        engine_id=engine_id,
    )


def told(engine_id: str, *, enforced: bool = True) -> None:
    NetworkGuardReport.objects.report(engine_id, enforced=enforced, detail="The kernel is old.")


def test_an_api_on_loopback_goes_on_without_isolation_and_says_so(api: Api) -> None:
    ok, required, detail = isolation(api.request("GET", "/readyz"))
    assert (ok, required) == (False, False)
    assert "No build worker" in detail
    assert refuse_wide_bind(seconds=0) == ""


def test_every_engine_with_a_worker_has_to_isolate(api: Api) -> None:
    worker_of("one")
    worker_of("two")
    told("one")
    assert "engine two" in isolation(api.request("GET", "/readyz"))[2]
    told("two", enforced=False)
    found = isolation(api.request("GET", "/readyz"))
    assert found == (False, False, "Engine two: The kernel is old.")
    told("two")
    assert isolation(api.request("GET", "/readyz"))[0]
    NetworkGuardReport.objects.filter(pk="one").update(checked_at=Now() - FRESH)
    assert not isolation(api.request("GET", "/readyz"))[0]


def test_an_engine_that_does_not_isolate_is_named_where_there_are_others(api: Api) -> None:
    worker_of("one")
    told("one", enforced=False)
    Engine.objects.create(name="first", engine_id="one")
    Engine.objects.create(name="not-seen-yet")
    assert isolation(api.get("/readyz"))[2] == "The kernel is old."
    Engine.objects.create(name="second", engine_id="two")
    assert isolation(api.get("/readyz"))[2] == "Engine first: The kernel is old."


def asked_on_a_machine_that_runs_for(seconds: int) -> str:
    """Return what is said of isolation on this machine, had it been started so long ago."""
    uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    program = "from workspaces.lifecycle.enforcement.isolation import check; print(check())"
    asked = subprocess.run(
        ["unshare", "--time", f"--boottime={seconds - uptime}", "--fork",
         sys.executable, "manage.py", "shell", "--no-imports", "-c", program],
        env=environment(SVC_NETWORK_GUARD="on"),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    return asked.stdout + asked.stderr


@pytest.mark.django_db(transaction=True)
def test_a_report_from_before_the_machine_was_started_again_counts_for_nothing() -> None:
    for up_for, said in ((3600, "Workspaces cannot reach"), (1, "No build worker of the engine")):
        worker_of("one")
        told("one")
        NetworkGuardReport.objects.update(checked_at=Now() - timedelta(seconds=10))
        assert said in asked_on_a_machine_that_runs_for(up_for)


@pytest.mark.parametrize("bound", ["0.0.0.0", "10.0.0.7", "::"])  # noqa: S104 - not bound
def test_a_wide_bind_is_refused_without_isolation_and_readiness_is_gone_with_it(
    api: Api, settings: Settings, bound: str
) -> None:
    settings.SVC_PUBLISHED_HOST = bound
    worker_of("one")
    assert "No build worker of the engine one" in refuse_wide_bind(seconds=0)
    told("one", enforced=False)
    assert "The kernel is old." in refuse_wide_bind(seconds=0)
    answer = api.get("/readyz", expect=503)
    assert isolation(answer)[:2] == (False, True)
    told("one")
    assert refuse_wide_bind(seconds=0) == ""


def test_a_wide_port_for_the_admin_counts_as_a_wide_bind(settings: Settings) -> None:
    settings.SVC_ADMIN_PUBLISHED_HOST = "0.0.0.0"  # noqa: S104 - not bound
    settings.SVC_ADMIN_PORT = 0
    assert refuse_wide_bind(seconds=0) == ""
    settings.SVC_ADMIN_PORT = 4009
    assert "does not listen on 0.0.0.0" in refuse_wide_bind(seconds=0)


def test_a_wide_bind_is_the_operators_affair_where_he_says_so(api: Api, settings: Settings) -> None:
    settings.SVC_PUBLISHED_HOST = "10.0.0.7"
    settings.SVC_NETWORK_GUARD = "off"
    assert "SVC_NETWORK_GUARD is off" in refuse_wide_bind(seconds=60)
    settings.SVC_NETWORK_GUARD = "external"
    assert refuse_wide_bind(seconds=0) == ""
    assert isolation(api.request("GET", "/readyz"))[:2] == (True, True)


@pytest.mark.django_db(transaction=True)
def test_the_api_ends_with_the_reason_instead_of_listening_for_others() -> None:
    changes = {"SVC_NETWORK_GUARD": "off", "SVC_BIND_HOST": "0.0.0.0"}  # noqa: S104 - refused
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
        env=environment(SVC_API_PORT="1", **changes),
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode != 0
    assert "any workspace could act for any owner" in done.stdout + done.stderr


@pytest.mark.docker
def test_a_worker_reports_what_it_has_enforced(
    make_launcher: Callable[..., Launcher], settings: Settings
) -> None:
    launcher = make_launcher()
    settings.SVC_BASE_IMAGES = {**settings.SVC_BASE_IMAGES, "debian": BASE_IMAGE}
    task = IsolationTask(launcher.adapter)
    try:
        task.look()
        (row,) = NetworkGuardReport.objects.fresh(within=timedelta(minutes=1))
        assert (row.engine_id, row.enforced) == (launcher.adapter.engine_id(), True)
        task.require()
    finally:
        launcher.adapter.network_guard(base_image=BASE_IMAGE).remove()
