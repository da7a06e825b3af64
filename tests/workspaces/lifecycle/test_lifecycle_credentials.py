"""What becomes of a workspace's connected accounts when it is stopped and started again."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from builds.pipeline.runner import JobRunner
from controlplane.errors import Conflict
from tests.accounts.connected import KEY, codex, connect, delete, renewed_secrets
from tests.bench.empty_jobs import empty_runner
from tests.conftest import OWNER
from tests.factories import make_worker
from tests.workspaces.credentials.credential_engine import HoldingEngine
from tests.workspaces.credentials.test_credential_upkeep import (
    PERSISTENT,
    SHELL,
    started,
)
from tests.workspaces.lifecycle.test_lifecycle_races import observed
from workspaces.lifecycle.teardown import TransitionExecutor
from workspaces.lifecycle.transition_worker import TransitionWorker
from workspaces.lifecycle.transitions import (
    NewStart,
    TransitionRequest,
    request_transition,
    start_workspace,
)
from workspaces.models import Attempt, BuildJob, RuntimeInstance, Transition
from workspaces.runtimes.base import ObservedRuntime
from workspaces.services import references_of

pytestmark = pytest.mark.django_db(transaction=True)


class RunningEngine(HoldingEngine):
    """Its workspaces run until they are removed."""

    def observe(self, run_id: uuid.UUID) -> ObservedRuntime | None:
        """Show a running container."""
        return observed(run_id) if run_id in self.held else None


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


@pytest.fixture
def engine() -> RunningEngine:
    """An engine whose workspaces are started at once."""
    return RunningEngine()


@pytest.fixture
def runner(engine: RunningEngine) -> JobRunner:
    """A worker's runner that builds nothing."""
    return empty_runner(engine)


def stop(engine: RunningEngine, job: BuildJob) -> None:
    workspace_id = job.attempt.workspace_id
    assert request_transition(
        TransitionRequest(workspace_id=workspace_id, kind=Transition.Kind.STOP, owner_user_id=OWNER)
    )
    make_worker("worker-a")
    stale = timedelta(minutes=20)
    executor = TransitionExecutor(adapter=engine, grace=timedelta(seconds=1), stale=stale)
    transition_worker = TransitionWorker(
        "worker-a", executor, stale=stale, is_reliable=lambda: True
    )
    transition_worker.run(threading.Event())
    assert RuntimeInstance.objects.get(attempt=job.attempt).status == "stopped"


def acts(engine: RunningEngine) -> list[str]:
    return [what for what, _ in engine.asked if what in ("collect", "withdraw", "remove")]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(PERSISTENT, ["collect", "withdraw", "remove"]), (SHELL, ["collect", "remove"])],
    ids=["persistent", "ephemeral"],
)
def test_what_is_renewed_is_kept_and_nothing_stays_in_a_home_that_is_kept(
    engine: RunningEngine, runner: JobRunner, spec: dict[str, Any], expected: list[str]
) -> None:
    account = connect("codex")
    job = started(runner, spec, codex=account)
    later = codex("2026-02-01T00:00:00Z")
    engine.renewed[job.attempt.run_id] = [(account, later)]
    engine.asked.clear()

    stop(engine, job)

    assert acts(engine) == expected
    assert renewed_secrets(account) == [later]


def test_a_start_gives_the_accounts_again_that_the_workspace_had(
    engine: RunningEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    job = started(runner, claude=account)
    stop(engine, job)
    start_workspace(NewStart(workspace_id=job.attempt.workspace_id, owner_user_id=OWNER))
    attempt = Attempt.objects.order_by("-pk")[0]
    assert [str(one.account_id) for one in references_of(attempt)] == [account]


def test_a_start_says_which_accounts_the_workspace_is_given_instead(
    engine: RunningEngine, runner: JobRunner
) -> None:
    job = started(runner, claude=connect("claude"))
    stop(engine, job)
    start_workspace(
        NewStart(workspace_id=job.attempt.workspace_id, owner_user_id=OWNER, credentials={})
    )
    assert references_of(Attempt.objects.order_by("-pk")[0]) == []


def test_a_start_with_an_account_that_was_deleted_is_refused(
    engine: RunningEngine, runner: JobRunner
) -> None:
    account = connect("claude")
    job = started(runner, claude=account)
    stop(engine, job)
    delete(account)
    start = NewStart(workspace_id=job.attempt.workspace_id, owner_user_id=OWNER)
    with pytest.raises(Conflict) as caught:
        start_workspace(start)
    assert caught.value.code == "connected-account-not-active"
    assert Attempt.objects.count() == 1
