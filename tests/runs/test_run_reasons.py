"""A command that waits says what for, and readiness and metrics say when slots are exhausted."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.work.models import Heartbeat
from runs.models import Run
from tests.conftest import Api
from tests.controlplane.test_metrics import scrape
from tests.runs.executable import make_executable

pytestmark = pytest.mark.django_db


def worker_with(**in_use: int) -> None:
    """Write the heartbeat of a run worker with two slots of each kind."""
    names = {"commands": "one-shot", "sessions": "interactive", "workspaces": "boot"}
    Heartbeat.objects.beat(
        "worker-a",
        kind=Heartbeat.Kind.RUN,
        hostname="test",
        pid=1,
        capacity=2,
        slots={
            mode: {"capacity": 2, "in_use": in_use.get(name, 0)} for name, mode in names.items()
        },
    )


def reason(api: Api, run: Run) -> Any:
    return api.get(f"/v1/runs/{run.pk}").body["reason"]


def slots_check(api: Api) -> Any:
    answer = api.request("GET", "/readyz")
    return next(each for each in answer.body["checks"] if each["name"] == "slots")


def test_a_command_without_a_worker_says_so(api: Api) -> None:
    run = make_executable()
    shown = reason(api, run)
    assert shown["code"] == "no-worker"
    assert "manage.py runworker" in shown["next"]


def test_a_command_without_a_slot_says_so_in_lists_too(api: Api) -> None:
    run = make_executable()
    worker_with(commands=2)
    assert reason(api, run)["code"] == "no-slot"
    assert "All 2 slots" in reason(api, run)["message"]
    (listed,) = [
        each
        for each in api.get(f"/v1/runs?ownerUserId={run.owner_user_id}").body["items"]
        if each["runId"] == str(run.pk)
    ]
    assert listed["reason"]["code"] == "no-slot"


def test_slots_of_other_kinds_are_not_what_a_command_waits_for(api: Api) -> None:
    run = make_executable()
    worker_with(sessions=2, workspaces=2)
    assert reason(api, run)["code"] == "queued"


def test_a_run_that_has_begun_has_no_reason(api: Api) -> None:
    run = make_executable(status=Run.Status.RUNNING)
    assert "reason" not in api.get(f"/v1/runs/{run.pk}").body


def test_readiness_names_the_kind_of_slot_that_is_exhausted(api: Api) -> None:
    worker_with()
    assert slots_check(api)["ok"]
    worker_with(workspaces=2)
    check = slots_check(api)
    assert not check["ok"]
    assert "RUN_WORKER_WORKSPACES" in check["detail"]


def test_metrics_count_slots_by_mode_of_run() -> None:
    worker_with(sessions=1)
    found = scrape()
    assert found.value("svc_run_slots", mode="interactive") == 2
    assert found.value("svc_run_slots_in_use", mode="interactive") == 1
    assert found.value("svc_run_slots_in_use", mode="boot") == 0
