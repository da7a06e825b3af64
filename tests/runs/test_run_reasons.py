"""A command that waits says what for, and readiness and metrics say when slots are exhausted."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries
from pytest_django.fixtures import Settings

from controlplane.work.models import Heartbeat
from runs.models import Run
from runs.reasons import reasons_of
from tests.conftest import Api
from tests.controlplane.test_metrics import scrape
from tests.runs.executable import make_executable
from tests.support.engines import STALE, make_engine, silence
from workspaces.models import RuntimeInstance

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def heard(settings: Settings) -> None:
    """Workers and engines that were heard do not fall silent while a test is slow."""
    settings.WORKER_HEARTBEAT_STALE_MS = STALE.total_seconds() * 1000


def worker_with(engine: str = "", **in_use: int) -> None:
    """Write the heartbeat of the run worker of an engine, with two slots of each kind."""
    names = {"commands": "one-shot", "sessions": "interactive", "workspaces": "boot"}
    Heartbeat.objects.beat(
        f"worker-{engine}",
        kind=Heartbeat.Kind.RUN,
        hostname="test",
        pid=1,
        capacity=2,
        engine_name=engine,
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


def test_slots_of_other_engines_are_not_what_a_command_waits_for(api: Api) -> None:
    there, here, anywhere = make_executable(), make_executable(), make_executable()
    for run, name in ((there, "second"), (here, "local"), (anywhere, "")):
        RuntimeInstance.objects.filter(attempt=run.attempt).update(engine_name=name)
    worker_with("local")
    assert reason(api, there)["code"] == "no-worker"
    assert "no run worker of the engine second is alive" in reason(api, there)["message"]
    worker_with("second", commands=2)
    assert reason(api, there)["code"] == "no-slot"
    assert "All 2 slots of the run workers of the engine second" in reason(api, there)["message"]
    assert reason(api, here)["code"] == reason(api, anywhere)["code"] == "queued"
    worker_with("local", commands=2)
    assert "All 4 slots" in reason(api, anywhere)["message"]
    worker_with("")  # one of an earlier release, or that serves all engines
    assert reason(api, there)["code"] == "queued"


def test_reasons_of_waiting_commands_take_two_statements_for_any_number(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    worker_with("local")
    waiting = [make_executable() for _ in range(3)]
    for each in waiting:
        RuntimeInstance.objects.filter(attempt=each.attempt).update(engine_name="local")
    with django_assert_num_queries(2):
        assert {found.code for found in reasons_of(waiting).values()} == {"queued"}


def test_slots_of_other_kinds_are_not_what_a_command_waits_for(api: Api) -> None:
    run = make_executable()
    worker_with(sessions=2, workspaces=2)
    assert reason(api, run)["code"] == "queued"


def test_a_run_that_has_begun_has_no_reason(api: Api) -> None:
    run = make_executable(status=Run.Status.RUNNING)
    assert "reason" not in api.get(f"/v1/runs/{run.pk}").body


def on_machine(**values: Any) -> Run:
    """Create a run that is going on, in a workspace whose runtime has these values."""
    run = make_executable(status=Run.Status.RUNNING)
    RuntimeInstance.objects.filter(attempt=run.attempt).update(**values)
    return run


def on_lost_node() -> Run:
    """Create a run that is going on, on a node that the cluster has given up."""
    failed = RuntimeInstance.Status.FAILED
    told = "The node n7 does not answer."
    return on_machine(status=failed, error_code="node-lost", error_message=told, finished_at=Now())


def test_a_run_on_an_engine_that_is_not_heard_says_so_until_it_is(api: Api) -> None:
    make_engine("local")
    engine = make_engine("second")
    run = on_machine(engine_name=engine.name)
    assert "reason" not in api.get(f"/v1/runs/{run.pk}").body
    silence(engine.name)
    shown = reason(api, run)
    assert (shown["code"], shown["engine"]) == ("engine-lost", "second")
    RuntimeInstance.objects.filter(attempt=run.attempt).update(status="stopped", finished_at=Now())
    assert "reason" not in api.get(f"/v1/runs/{run.pk}").body


def test_a_run_on_a_node_that_the_cluster_has_given_up_says_so_while_it_may_be_going_on(
    api: Api,
) -> None:
    run = on_lost_node()
    shown = reason(api, run)
    assert (shown["code"], shown["message"]) == ("node-lost", "The node n7 does not answer.")
    assert "no longer has its Pod: when the node is back" in shown["next"]
    Run.objects.filter(pk=run.pk).settle(Run.Status.FAILED)
    assert "reason" not in api.get(f"/v1/runs/{run.pk}").body


def test_lost_machines_take_one_statement_for_any_number_of_runs(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    make_engine("local")
    silence(make_engine("second").name)
    lost = [on_lost_node(), on_lost_node(), on_machine(engine_name="second")]
    well, ended = on_machine(), on_lost_node()
    Run.objects.filter(pk=ended.pk).settle(Run.Status.FAILED)
    ended.refresh_from_db()
    with django_assert_num_queries(1):
        assert set(reasons_of([*lost, well, ended])) == {run.pk for run in lost}
    with django_assert_num_queries(0):
        assert reasons_of([ended]) == {}


def test_readiness_names_the_kind_of_slot_that_is_exhausted(api: Api) -> None:
    worker_with()
    assert slots_check(api)["ok"]
    worker_with(workspaces=2)
    check = slots_check(api)
    assert not check["ok"]
    assert "RUN_WORKER_WORKSPACES" in check["detail"]


def test_readiness_names_the_engine_whose_slots_are_exhausted(api: Api) -> None:
    worker_with("local")
    worker_with("second", commands=2)
    check = slots_check(api)
    assert not check["ok"]
    assert check["detail"].startswith("All 2 slots for commands on second are in use;")
    assert "local" not in check["detail"]


def test_metrics_count_slots_by_mode_of_run_and_engine() -> None:
    for name in ("local", "second", "third"):
        make_engine(name)
    worker_with("local", sessions=1)
    worker_with("second", sessions=2)
    found = scrape()
    in_use = {
        name: found.value("svc_run_slots_in_use", mode="interactive", engine=name)
        for name in ("local", "second", "third")
    }
    assert in_use == {"local": 1, "second": 2, "third": 0}
    assert found.labels("svc_run_slots", "engine") == {"local", "second", "third"}
    assert found.value("svc_run_slots", mode="interactive", engine="second") == 2
    assert found.value("svc_run_slots_in_use", mode="boot", engine="local") == 0
