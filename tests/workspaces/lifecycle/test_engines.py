"""Engines that are gone for good: what ran there fails, and nothing waits for them any more."""

from __future__ import annotations

import io
import threading
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client

from builds.build_worker import BuildWorker, ReconcilerTimes
from controlplane.work.models import Heartbeat
from controlplane.work.periodic import PeriodicTask
from controlplane.work.worker import WorkerTimes
from tests.bench.empty_jobs import NoEngine, empty_runner
from tests.factories import make_worker
from tests.runs.ready import ready_attempt, ready_attempts
from tests.workspaces.lifecycle.test_lifecycle_races import (
    DELETE,
    STALE,
    STOP,
    Engine,
    asked,
    attend,
    told,
    transition_request,
)
from workspaces.lifecycle import engines
from workspaces.lifecycle.engines import EngineLivesError, UnknownEngineError, forget_engine
from workspaces.lifecycle.reconciler import Reconciliation, reconcile
from workspaces.lifecycle.transitions import request_transition
from workspaces.models import (
    Attempt,
    RuntimeInstance,
    Sandbox,
    Transition,
    WarmMember,
    WarmPlan,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchError

GONE = "gone-engine"
DAY = timedelta(days=1)
PAGE = "/admin/work/heartbeat/engines/"


def on_the_gone_engine(*attempts: Attempt) -> None:
    """Have these run on an engine that nobody works with."""
    runtimes = RuntimeInstance.objects.filter(attempt__in=attempts)
    assert runtimes.update(engine_id=GONE) == len(attempts)


def worker_of(engine_id: str, *, seen: timedelta = timedelta(), name: str = "worker-x") -> None:
    make_worker(name, seen=seen)
    Heartbeat.objects.filter(pk=name).update(engine_id=engine_id)


def forget(engine_id: str = GONE) -> int:
    return forget_engine(engine_id, by="ada", stale=STALE)


def state(attempt: Attempt) -> tuple[str, str, str]:
    """How runtime, its reason and the sandbox stand."""
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    return (runtime.status, runtime.error_code, Sandbox.objects.get(pk=attempt.sandbox_id).status)


def look_again() -> None:
    """Do not wait until a transition is tried again."""
    Transition.objects.update(retry_at=Now())


# ---------------------------------------------------------------- declaring one gone


@pytest.mark.django_db
def test_what_ran_there_has_failed_is_told_once_and_the_rest_stays() -> None:
    running, stopping, other = ready_attempt(), asked(), ready_attempt()
    on_the_gone_engine(running, stopping)
    assert forget() == 2
    assert forget() == 0
    for attempt in (running, stopping):
        assert state(attempt) == ("failed", "engine-gone", "failed")
        assert told(attempt).count("runtime.failed") == 1
        event = WorkspaceEvent.objects.get(attempt=attempt, type="runtime.failed")
        assert event.data == {"errorCode": "engine-gone"}
    assert state(other) == ("running", "", "ready")


@pytest.mark.django_db
def test_what_waited_there_in_the_warm_pool_is_forgotten_with_it() -> None:
    worker_of(GONE, seen=DAY)
    plan = WarmPlan.objects.create(key="one", shape={})
    WarmMember.objects.create(plan=plan, engine_id=GONE)
    other = WarmMember.objects.create(plan=plan, engine_id="another")
    on_the_gone_engine(ready_attempt())
    forget()
    assert WarmMember.objects.get() == other


@pytest.mark.django_db
def test_very_many_end_in_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "AT_ONCE", 3)
    on_the_gone_engine(*ready_attempts(8))
    assert forget() == 8
    assert Counter(RuntimeInstance.objects.values_list("status", flat=True)) == {"failed": 8}


@pytest.mark.django_db
def test_an_engine_with_a_worker_that_lives_is_not_forgotten_and_one_whose_worker_died_is() -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    worker_of(GONE)
    with pytest.raises(EngineLivesError, match="worker-x"):
        forget()
    assert state(attempt) == ("running", "", "ready")
    worker_of(GONE, seen=2 * STALE)
    worker_of("engine", name="worker-y")
    assert forget() == 1


@pytest.mark.django_db
def test_an_engine_whose_build_worker_is_just_restarted_is_known_to_live_by_its_run_worker() -> (
    None
):
    on_the_gone_engine(ready_attempt())
    kind = Heartbeat.Kind.RUN
    seen: dict[str, Any] = {"kind": kind, "hostname": "test", "pid": 1, "capacity": 1}
    Heartbeat.objects.beat("recorder-x", **seen, engine_id=GONE)
    Heartbeat.objects.beat("recorder-y", **seen)
    with pytest.raises(EngineLivesError, match="live run worker: recorder-x"):
        forget()
    Heartbeat.objects.update(seen_at=Now() - 2 * STALE)
    assert forget() == 1


@pytest.mark.django_db
def test_while_a_worker_that_lives_may_be_of_it_an_engine_is_not_forgotten() -> None:
    on_the_gone_engine(ready_attempt())
    worker_of("")
    with pytest.raises(EngineLivesError, match="not known yet"):
        forget()
    worker_of("engine")
    assert forget() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("engine_id", ["gone-engin", "", "%"])
def test_a_typo_forgets_nothing(engine_id: str) -> None:
    attempt, unnamed = ready_attempt(), ready_attempt()
    on_the_gone_engine(attempt)
    RuntimeInstance.objects.filter(attempt=unnamed).update(engine_id="")
    with pytest.raises(UnknownEngineError):
        forget(engine_id)
    assert {state(one)[0] for one in (attempt, unnamed)} == {"running"}


# ---------------------------------------------------------------- nothing waits for it any more


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [STOP, DELETE])
def test_what_was_asked_for_there_is_done_without_it(kind: Transition.Kind) -> None:
    attempt = asked(kind)
    on_the_gone_engine(attempt)
    attend(Engine())
    assert Transition.objects.get().waiting_code == "other-engine"
    Heartbeat.objects.all().delete()
    forget()
    look_again()
    attend(Engine())
    assert not Transition.objects.open().exists()
    assert state(attempt)[:2] == ("failed", "engine-gone")
    deleted = Workspace.objects.get(pk=attempt.workspace_id).deleted_at
    assert (deleted is not None) == (kind == DELETE)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [STOP, DELETE])
def test_what_is_asked_for_afterwards_does_not_wait_either(kind: Transition.Kind) -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    forget()
    assert request_transition(transition_request(attempt.workspace_id, kind)) == (kind == DELETE)
    attend(Engine())
    assert not Transition.objects.open().exists()


# ---------------------------------------------------------------- the engine comes back


@pytest.mark.django_db(transaction=True)
def test_containers_of_an_engine_that_comes_back_are_ended_and_kept_for_their_files() -> None:
    """Nobody enters or records them any more; their files may be all there is of some work."""
    attempt, replaced = ready_attempt(), ready_attempt()
    on_the_gone_engine(attempt, replaced)
    forget()
    # Started again elsewhere, since.
    Sandbox.objects.filter(pk=replaced.sandbox_id).update(latest_attempt=None)
    engine = Engine(running={attempt.run_id, replaced.run_id})
    again = reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=DAY)
    assert again == Reconciliation(removed=1)
    assert engine.told.count("stop") == 1
    assert engine.running == {attempt.run_id}  # ended, as far as this one knows how to
    assert state(attempt) == ("failed", "engine-gone", "failed")
    reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=timedelta())
    assert engine.running == set()


@pytest.mark.django_db(transaction=True)
def test_one_that_cannot_be_ended_keeps_no_other_from_its_end() -> None:
    first, second = ready_attempt(), ready_attempt()
    on_the_gone_engine(first, second)
    forget()
    engine = Engine(running={first.run_id, second.run_id})

    def breaks() -> None:
        engine.on.clear()
        raise LaunchError("adapter-unavailable", "The Docker Engine did not do what was asked.")

    engine.on["stop"] = breaks
    reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=DAY)
    assert engine.told.count("stop") == 2


# ---------------------------------------------------------------- deleted elsewhere


@pytest.mark.django_db(transaction=True)
def test_a_deletion_names_the_other_engines_that_may_hold_something_of_it() -> None:
    attempt, plain = asked(DELETE), asked(DELETE)
    earlier = ready_attempt()
    on_the_gone_engine(earlier)
    RuntimeInstance.objects.filter(attempt=earlier).update(status="stopped", finished_at=Now())
    Attempt.objects.filter(pk=earlier.pk).update(workspace_id=attempt.workspace_id)
    attend(Engine(running={attempt.run_id, plain.run_id}))
    events = WorkspaceEvent.objects.filter(type="workspace.deleted")
    event = events.get(workspace_id=attempt.workspace_id)
    assert event.data == {"volumes": 2, "otherEngines": [GONE]}
    assert "other engines" in event.message
    assert events.get(workspace_id=plain.workspace_id).data == {"volumes": 2}

    there = Engine(running={earlier.run_id}, kept={attempt.workspace_id})
    reconcile(there, instance_id="test", grace=timedelta(), keep_ended=DAY)
    assert (there.running, there.kept) == (set(), set())


# ---------------------------------------------------------------- whose worker is whose


class Elsewhere(NoEngine):
    """Has a name, and is another machine's after a while."""

    names = ["first", "second"]

    def engine_id(self) -> str:
        """Change it with each question, up to the last."""
        return self.names.pop(0) if len(self.names) > 1 else self.names[0]


@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_its_engine_with_its_heartbeat_and_finds_out_that_it_is_another() -> None:
    soon = timedelta(milliseconds=20)
    times = WorkerTimes(
        lease=DAY, heartbeat=soon, stale=DAY, sweep=soon, overdue=DAY, keep=soon
    )  # fmt: skip
    seen: list[str] = []

    def watch(_stopped: threading.Event) -> None:
        now = Heartbeat.objects.values_list("engine_id", flat=True).get()
        if now not in ("", *seen[-1:]):
            seen.append(now)
        if seen[-1:] == ["second"]:
            worker.stop()

    worker = Stoppable(
        runner=empty_runner(Elsewhere()),
        broker_url="amqp://127.0.0.1:1",
        broker_timeout=1,
        builds=1,
        starts=1,
        times=times,
        reconciler=ReconcilerTimes(grace=DAY, keep_ended=DAY),
        tasks=[PeriodicTask(name="watch", every=soon, run=watch)],
    )
    worker.run()
    assert seen[-1] == "second"
    assert not Heartbeat.objects.exists()


class Stoppable(BuildWorker):
    """A worker whose main thread ends when a test says so, as after a signal."""

    def stop(self) -> None:
        """Drain."""
        self._signals += 1


# ---------------------------------------------------------------- the command


def command(*arguments: str) -> str:
    said = io.StringIO()
    call_command("forgetengine", *arguments, stdout=said)
    return said.getvalue()


@pytest.mark.django_db
def test_the_command_lists_what_is_known() -> None:
    assert "No engine is known" in command()
    on_the_gone_engine(ready_attempt(), asked())
    ready_attempt()
    worker_of("engine")
    said = command("--list")
    assert f"{GONE}: running: 1, stopping: 1, waiting stops and deletes: 1," in said
    assert "live build workers: 0, last heard: not known" in said
    assert "\nengine: running: 1, stopping: 0, waiting stops and deletes: 0, live build" in said


@pytest.mark.django_db
def test_the_command_forgets_and_without_need_changes_nothing() -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    assert f"would fail with the engine {GONE}: 1." in command(GONE, "--dry-run")
    assert "running: 1," in command(GONE, "--list")
    assert state(attempt)[0] == "running"
    worker_of(GONE)
    for options in ([], ["--dry-run"]):
        with pytest.raises(CommandError, match="has a live build worker"):
            command(GONE, *options)
    with pytest.raises(CommandError, match="No workspace has ever run"):
        command("a-typo")
    Heartbeat.objects.all().delete()
    assert f"have failed with the engine {GONE}: 1." in command(GONE)
    assert f"have failed with the engine {GONE}: 0." in command(GONE)
    assert state(attempt)[:2] == ("failed", "engine-gone")


# ---------------------------------------------------------------- the admin


def staff(*permissions: str) -> Client:
    """Somebody who may do what ``permissions`` name; everything without any."""
    users, client = get_user_model().objects, Client()
    if permissions:
        user = users.create_user(uuid.uuid4().hex, password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    else:
        user = users.create_superuser("ada", password="x")
    client.force_login(user)
    return client


@pytest.mark.django_db
def test_an_operator_is_asked_first_and_the_log_has_who_it_was() -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    client = staff()
    page = client.get(PAGE).content.decode()
    assert GONE in page
    assert "Yes, it is gone" not in page
    page = client.get(PAGE, {"engine": GONE}).content.decode()
    assert "Yes, it is gone" in page
    assert state(attempt)[0] == "running"
    answer = client.post(PAGE, {"engine": GONE}, follow=True)
    assert [str(one) for one in answer.context["messages"]] == [
        f"The engine {GONE} is gone. Workspaces that have failed with it: 1."
    ]
    assert state(attempt)[:2] == ("failed", "engine-gone")
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("ada", GONE)


@pytest.mark.django_db
def test_the_admin_refuses_an_engine_that_lives_or_that_nobody_knows() -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    worker_of(GONE)
    client = staff()
    for engine_id, why in ((GONE, "has a live build worker"), ("typo", "has ever run")):
        page = client.get(PAGE, {"engine": engine_id}).content.decode()
        assert why in page
        assert "Yes, it is gone" not in page
        answer = client.post(PAGE, {"engine": engine_id}, follow=True)
        assert why in str(next(iter(answer.context["messages"])))
    assert state(attempt)[0] == "running"
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_who_may_only_look_declares_nothing_gone() -> None:
    attempt = ready_attempt()
    on_the_gone_engine(attempt)
    looking = staff("view_heartbeat")
    page = looking.get(PAGE, {"engine": GONE}).content.decode()
    assert GONE in page
    assert "gone?" not in page
    assert "Declare it gone" not in page
    assert looking.post(PAGE, {"engine": GONE}).status_code == 403
    assert staff("view_transition").get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302
    assert state(attempt)[0] == "running"


@pytest.mark.django_db
def test_the_page_is_found_from_the_workers() -> None:
    client = staff()
    for where in ("/admin/", "/admin/work/heartbeat/"):
        assert PAGE in client.get(where).content.decode()
