"""Forgetting an engine: its workers end first, it can be taken back, and then it is gone."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.models.functions import Now
from django.test import Client, override_settings
from structlog.testing import capture_logs

from controlplane.work.models import Heartbeat
from tests.factories import claim, make_job, make_worker
from tests.runs.ready import ready_attempt
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.worker_process import CommandProcess, WorkerProcess, eventually
from tests.support.engines import STALE, make_engine, silence
from tests.support.waiting import LONG_WAIT
from workspaces.engines.certificates import engine_folder
from workspaces.lifecycle import engines
from workspaces.lifecycle.engines import (
    EngineLivesError,
    EngineRefusedError,
    begin_forgetting,
    drain_engine,
    finish_all,
    finish_forgetting,
    forget_named,
)
from workspaces.models import (
    Attempt,
    BuildJob,
    Engine,
    RuntimeInstance,
    WarmMember,
    WarmPlan,
)

LONG = timedelta(days=1)
PAGE = "/admin/work/heartbeat/engines/"


@pytest.fixture
def attempt(request: pytest.FixtureRequest) -> Attempt:
    """Have two engines, and a workspace that runs on the second one."""
    marker = request.node.get_closest_marker("django_db")
    transactional = marker is not None and marker.kwargs.get("transaction")
    request.getfixturevalue("transactional_db" if transactional else "db")
    make_engine("local")
    make_engine("second")
    ready = ready_attempt()
    on_second = {"engine_name": "second", "engine_id": "id-of-second"}
    RuntimeInstance.objects.filter(attempt=ready).update(**on_second)
    return ready


def worker_lives() -> None:
    """Have a worker of the second engine live, which hears it."""
    make_worker("worker-x")
    Heartbeat.objects.filter(pk="worker-x").update(engine_id="id-of-second", seen_at=Now() + LONG)
    heard_just_now()


def heard_just_now() -> None:
    """Have the second engine have answered just now, however long the test takes."""
    Engine.objects.filter(pk="second").update(seen_at=Now() + LONG)


def worker_ended() -> None:
    """Have that worker have ended some time ago."""
    Heartbeat.objects.all().delete()
    silence("second")


def state(attempt: Attempt) -> tuple[str, str]:
    """Return how the engine stands, and the workspace."""
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    return Engine.objects.get(pk="second").state, runtime.status


def finish() -> int:
    """Declare it gone, if it may be."""
    return finish_forgetting("second", by="ada", stale=STALE)


def typed(*arguments: str) -> str:
    """Return what a command prints."""
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_an_engine_is_leaving_until_its_workers_have_ended_and_then_it_is_gone(
    attempt: Attempt,
) -> None:
    worker_lives()
    with pytest.raises(CommandError, match=r"is leaving, and not gone yet.*worker-x"):
        typed("engine", "forget", "second", "--wait", "0")
    assert state(attempt) == ("leaving", "running")
    finish_all(stale=STALE)
    assert state(attempt) == ("leaving", "running")
    worker_ended()
    finish_all(stale=STALE)
    assert state(attempt) == ("gone", "failed")
    assert "have failed with it: 0" in typed("engine", "forget", "second")


@pytest.mark.django_db
def test_an_engine_that_answers_while_its_workers_end_is_not_forgotten_early(
    attempt: Attempt,
) -> None:
    silence("second")
    begin_forgetting("second", by="ada")
    # It was away, and comes back before anybody has looked again.
    Engine.objects.heard("second", engine_id="id-of-second", memory_bytes=1, cpus=1)
    heard_just_now()
    with pytest.raises(EngineLivesError, match="has heard the engine second just now"):
        finish()
    assert state(attempt) == ("leaving", "running")
    silence("second")
    assert finish() == 1
    Engine.objects.heard("second", engine_id="id-of-second", memory_bytes=1, cpus=1)
    assert state(attempt) == ("gone", "failed")


@pytest.mark.django_db
def test_nothing_new_begins_on_an_engine_that_is_leaving(attempt: Attempt) -> None:
    waiting = make_job(engine_name="second")
    begin_forgetting("second", by="ada")
    given = {"worker_id": "w", "lease": STALE, "engine": "second"}
    assert BuildJob.objects.claim(waiting.pk, **given) is None  # type: ignore[arg-type]
    assert not Engine.objects.take_starts("id-of-second")
    with pytest.raises(EngineRefusedError, match="already leaving"):
        drain_engine("second", draining=True)
    assert "second: leaving" in typed("engine", "list")


@pytest.mark.django_db
def test_an_engine_that_is_taken_back_is_never_gone(attempt: Attempt) -> None:
    worker_lives()
    begin_forgetting("second", by="ada")
    typed("engine", "undrain", "second")
    worker_ended()
    with pytest.raises(EngineRefusedError, match="taken back"):
        finish()
    finish_all(stale=STALE)
    assert state(attempt) == ("active", "running")


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_workers_hears_that_the_engine_was_taken_back(attempt: Attempt) -> None:
    worker_lives()
    told: list[str] = []

    def wait() -> None:
        try:
            forget_named("second", by="ada", stale=STALE, wait=LONG_WAIT)
        except EngineRefusedError as error:
            told.append(error.detail)
        finally:
            connections.close_all()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        eventually(lambda: state(attempt)[0] == "leaving", what="it is leaving", timeout=LONG_WAIT)
        drain_engine("second", draining=False)
        waiting.join(LONG_WAIT)
    finally:
        Heartbeat.objects.all().delete()
        silence("second")
        waiting.join(LONG_WAIT)
    assert len(told) == 1
    assert state(attempt) == ("active", "running")


@pytest.mark.django_db
def test_an_engine_that_is_gone_is_not_taken_back_and_what_was_left_of_it_ends_again(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence("second")
    begin_forgetting("second", by="ada")

    def fails(*_: object) -> int:
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(engines, "_end_all", fails)
        with pytest.raises(RuntimeError):
            finish()
    assert state(attempt) == ("gone", "running")
    with pytest.raises(EngineRefusedError, match="declared gone"):
        drain_engine("second", draining=False)
    assert finish() == 1
    assert state(attempt) == ("gone", "failed")


@pytest.mark.django_db
def test_what_was_left_when_forgetting_was_killed_ends_without_anybody_asking(
    attempt: Attempt,
) -> None:
    silence("second")
    Engine.objects.filter(pk="second").update(state="gone")
    assert state(attempt) == ("gone", "running")
    finish_all(stale=STALE)
    assert state(attempt) == ("gone", "failed")
    assert RuntimeInstance.objects.get(attempt=attempt).engine_name == ""


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["failed", "stopped", "pending"])
def test_what_does_not_run_on_an_engine_that_is_gone_is_of_no_engine_without_anybody_asking(
    attempt: Attempt, status: str
) -> None:
    silence("second")
    Engine.objects.filter(pk="second").update(state="gone")
    over = None if status == "pending" else Now()
    RuntimeInstance.objects.filter(attempt=attempt).update(status=status, finished_at=over)
    finish_all(stale=STALE)
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    assert (runtime.status, runtime.engine_name) == (status, "")


@pytest.mark.django_db
@pytest.mark.parametrize("launches", [False, True])
def test_a_job_that_waits_or_launches_on_an_engine_that_is_gone_is_of_no_engine(
    launches: bool,
) -> None:
    make_engine("local")
    make_engine("second", state="gone")
    job = make_job(engine_name="second")
    if launches:
        claim(job)
        BuildJob.objects.filter(pk=job.pk).update(
            status="succeeded", published_digest=f"sha256:{'0' * 64}", finished_at=Now()
        )
    finish_all(stale=STALE)
    assert BuildJob.objects.get(pk=job.pk).engine_name == ""


@pytest.mark.django_db
def test_what_waited_for_a_start_on_an_engine_that_is_gone_is_forgotten(attempt: Attempt) -> None:
    """Unless the same machine was added again under another name: then it waits there."""
    Engine.objects.filter(pk="second").update(state="gone")
    RuntimeInstance.objects.update(engine_name="", status="failed", finished_at=Now())
    plan = WarmPlan.objects.create(key="one", shape={})
    WarmMember.objects.create(plan=plan, engine_id="id-of-second")
    third = Engine.objects.create(name="third", engine_id="id-of-second")
    finish_all(stale=STALE)
    assert WarmMember.objects.exists()
    third.delete()
    finish_all(stale=STALE)
    assert not WarmMember.objects.exists()


@pytest.mark.django_db
def test_an_engine_of_which_nothing_is_left_is_not_declared_gone_again(attempt: Attempt) -> None:
    job = make_job(engine_name="second")
    BuildJob.objects.filter(pk=job.pk).update(
        status="failed", error_message="Broken.", finished_at=Now()
    )
    silence("second")
    begin_forgetting("second", by="ada")
    finish()
    with capture_logs() as logs:
        finish_all(stale=STALE)
    assert logs == []
    assert BuildJob.objects.get(pk=job.pk).engine_name == "second"


@pytest.mark.django_db
def test_forgetting_again_spares_what_runs_on_the_machine_under_its_new_name(
    attempt: Attempt,
) -> None:
    silence("second")
    typed("engine", "forget", "second")
    Engine.objects.create(name="third", engine_id="id-of-second")
    later = {"engine_name": "third", "engine_id": "id-of-second"}
    RuntimeInstance.objects.filter(attempt=attempt).update(
        status="running", finished_at=None, **later
    )
    assert "have failed with it: 0" in typed("engine", "forget", "second")
    assert state(attempt) == ("gone", "running")


@pytest.mark.django_db
def test_the_only_engine_is_not_given_up_by_its_name() -> None:
    make_engine("local")
    make_engine("second", state="gone")
    with pytest.raises(CommandError, match="local is the only engine"):
        typed("engine", "forget", "local")
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    asked = {"action": "forget", "_selected_action": ["local"]}
    answer = client.post("/admin/workspaces/engine/", asked, follow=True)
    assert "is the only engine" in str(next(iter(answer.context["messages"])))
    assert Engine.objects.get(pk="local").state == "active"


@pytest.mark.django_db
def test_its_certificates_are_removed(attempt: Attempt, tmp_path: Path) -> None:
    silence("second")
    with override_settings(SVC_DATA_DIR=tmp_path):
        engine_folder("second").mkdir(parents=True)
        (engine_folder("second") / "key.pem").write_text("secret")
        typed("engine", "forget", "second")
        assert not engine_folder("second").exists()


@pytest.mark.django_db
def test_a_dry_run_of_one_of_several_engines_is_not_refused_for_its_workers(
    attempt: Attempt,
) -> None:
    worker_lives()
    assert "would fail with the engine id-of-second: 1" in typed(
        "forgetengine", "id-of-second", "--dry-run"
    )
    assert state(attempt) == ("active", "running")


@pytest.mark.django_db
def test_the_admin_ends_the_workers_of_one_of_several_engines(attempt: Attempt) -> None:
    worker_lives()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    page = client.get(PAGE, {"engine": "id-of-second"}).content.decode()
    assert "Build workers that are stopped first: worker-x" in page
    assert "Declare it gone" in page
    answer = client.post(PAGE, {"engine": "id-of-second"}, follow=True)
    assert "is leaving, and not gone yet" in str(next(iter(answer.context["messages"])))
    assert state(attempt) == ("leaving", "running")


@pytest.fixture
def served(build_queue: str, run_queue: str) -> None:
    """Have an engine that real workers serve, beside another one."""
    make_engine("local")
    make_engine("other")


@pytest.mark.docker
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [WorkerProcess, RunWorkerProcess])
def test_a_worker_ends_with_its_engine_and_one_that_is_started_meanwhile_waits(
    kind: Callable[..., CommandProcess], served: None, tmp_path: Path
) -> None:
    given = {"WORKER_SWEEP_INTERVAL_MS": "200", "SVC_DATA_DIR": str(tmp_path / "data")}
    limit = {"max_jobs": None} if kind is WorkerProcess else {"max_runs": None}
    first = kind(tmp_path / "first.log", **limit, **given)
    started = [first]
    try:
        eventually(Heartbeat.objects.exists, what="it works", timeout=LONG_WAIT)
        begin_forgetting("local", by="ada")
        assert first.wait(LONG_WAIT) == 0, first.told
        assert not Heartbeat.objects.exists()
        second = kind(tmp_path / "second.log", **limit, **given)
        started.append(second)
        eventually(
            lambda: "engine_leaving_awaited" in second.told, what="it waits", timeout=LONG_WAIT
        )
        assert not Heartbeat.objects.exists()
        drain_engine("local", draining=False)
        eventually(Heartbeat.objects.exists, what="it works", timeout=LONG_WAIT)
    finally:
        for process in started:
            process.stop()
