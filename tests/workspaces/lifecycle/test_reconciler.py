"""Bringing containers, networks and volumes in step with the rows, a thousand at a time too."""

from __future__ import annotations

import builtins
import io
import json
import tarfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.bench.empty_jobs import NoEngine
from tests.factories import OWNER, claim, make_job
from tests.runs.ready import ready_attempt, ready_attempts
from tests.support import attempt_steps
from tests.support.waiting import LONG_WAIT
from workspaces import services as workspaces
from workspaces.lifecycle import reconciler
from workspaces.lifecycle.reconciler import Orphans, Reconciliation, reconcile
from workspaces.models import (
    Attempt,
    RuntimeInstance,
    Sandbox,
    WarmMember,
    WarmPlan,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import Collect, LaunchError, ObservedRuntime

pytestmark = pytest.mark.django_db
GRACE, KEEP = timedelta(minutes=1), timedelta(days=1)
OLD = datetime(2026, 1, 1, tzinfo=UTC)


def running(run_id: uuid.UUID, **values: Any) -> ObservedRuntime:
    runtime = ObservedRuntime(
        run_id=run_id,
        job_id=uuid.UUID(int=1),
        attempt_count=1,
        resource_id="0" * 64,
        reference=f"svc-{run_id}",
        running=True,
        exit_code=None,
        oom_killed=False,
        created_at=OLD,
    )
    return replace(runtime, **values)


@dataclass
class Engine(NoEngine):
    """Has the containers and volumes that a test says; ``between`` happens after each list."""

    containers: dict[uuid.UUID, ObservedRuntime] = field(default_factory=dict)
    volumes: set[uuid.UUID] = field(default_factory=set)
    away: bool = False
    between: Callable[[], object] = lambda: None
    stuck: set[uuid.UUID] = field(default_factory=set)
    """What it cannot remove."""
    at_stuck: Callable[[], object] = lambda: None
    removed: builtins.list[uuid.UUID] = field(default_factory=list)
    kept_networks: set[uuid.UUID] = field(default_factory=set)
    status: dict[str, Any] | None = None
    """What the agents have left; None: their files cannot be read."""

    def _require(self) -> None:
        if self.away:
            raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.")

    def engine_id(self) -> str:
        self._require()
        return "engine"

    def list(self, workspace_id: uuid.UUID | None = None) -> builtins.list[ObservedRuntime]:
        self._require()
        shown = [*self.containers.values()]
        self.between()
        return shown

    @contextmanager
    def read_files(self, run_id: uuid.UUID, path: str) -> Iterator[Iterator[bytes]]:
        if self.status is None:
            raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            content = json.dumps(self.status).encode()
            member = tarfile.TarInfo(path.rpartition("/")[2])
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        yield iter([packed.getvalue()])

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        if run_id in self.stuck:
            self.at_stuck()
            raise LaunchError("adapter-unavailable", "The Docker Engine did not do what was asked.")
        self.removed.append(run_id)
        return self.containers.pop(run_id, None) is not None

    def sweep_networks(self, keep_run_ids: Collection[uuid.UUID]) -> int:
        self.kept_networks = set(keep_run_ids)
        return 0

    def workspaces_with_volumes(self) -> set[uuid.UUID]:
        return set(self.volumes)

    def remove_volumes(self, workspace_id: uuid.UUID) -> int:
        self.volumes.discard(workspace_id)
        return 1


def once(engine: Engine, /, **options: Any) -> Reconciliation:
    return reconcile(
        engine, **{"instance_id": "test", "grace": GRACE, "keep_ended": KEEP, **options}
    )


def having(*attempts: Attempt, **values: Any) -> Engine:
    return Engine({each.run_id: running(each.run_id, **values) for each in attempts})


def told(attempt: Attempt) -> Counter[str]:
    events = WorkspaceEvent.objects.filter(workspace_id=attempt.workspace_id)
    return Counter(events.values_list("type", flat=True))


def state(attempt: Attempt) -> tuple[str, str, str]:
    """How runtime, its reason and the sandbox stand."""
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    return (runtime.status, runtime.error_code, Sandbox.objects.get(pk=attempt.sandbox_id).status)


def member_of(run_id: uuid.UUID | None = None) -> WarmMember:
    """A container of the warm pool that waits, or that a run has claimed."""
    plan, _ = WarmPlan.objects.get_or_create(key="one", defaults={"shape": {}})
    claimed: dict[str, Any] = {"status": "claimed", "run_id": run_id, "claimed_at": Now()}
    return WarmMember.objects.create(plan=plan, engine_id="engine", **(claimed if run_id else {}))


# ---------------------------------------------------------------- what a row wants


def test_what_was_placed_on_another_engine_is_not_wanted_on_this_one() -> None:
    moved, here, unplaced = (make_job(engine_name=name) for name in ("other", "this", ""))
    runs_there, runs_here = ready_attempt(), ready_attempt()
    runtimes = RuntimeInstance.objects
    runtimes.filter(attempt=runs_there).update(engine_name="other", engine_id="id-of-other")
    runtimes.filter(attempt=runs_here).update(engine_name="this")
    attempts = [job.attempt for job in (moved, here, unplaced)]
    engine = having(*attempts, runs_there, runs_here)
    assert once(engine, engine="this").removed == 2
    assert set(engine.removed) == {moved.attempt.run_id, runs_there.run_id}
    assert state(runs_there)[0] == "running"
    again = having(*attempts)
    assert once(again).removed == 0


def test_what_runs_and_is_wanted_is_left_as_it_is() -> None:
    attempt = ready_attempt()
    engine = having(attempt)
    assert once(engine) == Reconciliation()
    assert state(attempt) == ("running", "", "ready")
    assert engine.removed == []
    assert attempt.run_id in engine.kept_networks


def test_what_is_wanted_and_gone_has_failed_and_is_told_once() -> None:
    attempt, other = ready_attempt(), ready_attempt()
    engine = having(other)
    assert once(engine) == Reconciliation(lost=1)
    assert once(engine) == Reconciliation()
    assert state(attempt) == ("failed", "runtime-lost", "failed")
    assert state(other) == ("running", "", "ready")
    assert told(attempt)["runtime.failed"] == 1


@pytest.mark.parametrize(
    ("exit_code", "oom", "expected"),
    [
        (0, False, ("stopped", "foreground-ended", "stopped")),
        (137, False, ("failed", "runtime-exited", "failed")),
        (137, True, ("failed", "runtime-out-of-memory", "failed")),
    ],
)
def test_what_ended_by_itself_is_told_with_how(
    exit_code: int, oom: bool, expected: tuple[str, str, str]
) -> None:
    attempt = ready_attempt()
    engine = having(attempt, running=False, exit_code=exit_code, oom_killed=oom)
    assert once(engine).ended == 1
    assert state(attempt) == expected
    assert engine.removed == []  # its files are kept for a while
    assert once(engine, keep_ended=timedelta()).removed == 1


FOREGROUND = {"name": "foreground", "kind": "foreground", "index": 0, "exitCode": 3}
LAST_WORDS = """The workspace's foreground process ended with exit code 3.
The end of its output:
the port is taken"""
NO_WORDS = "The workspace's container ended with exit code 3."


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "stopped", "step": FOREGROUND, "tail": "the port is taken"}, LAST_WORDS),
        ({"phase": "ready", "step": FOREGROUND}, NO_WORDS),
        (None, NO_WORDS),
    ],
)
def test_a_failure_is_told_in_the_foregrounds_last_words_where_there_are_any(
    status: dict[str, Any] | None, said: str
) -> None:
    attempt = ready_attempt()
    engine = having(attempt, running=False, exit_code=3)
    engine.status = status
    assert once(engine).ended == 1
    assert RuntimeInstance.objects.get(attempt=attempt).error_message == said


def test_an_engine_that_is_slow_to_tell_last_words_keeps_no_end_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciler, "LAST_WORDS_SECONDS", 0)
    attempt = ready_attempt()
    engine = having(attempt, running=False, exit_code=3)
    engine.status = {"phase": "stopped", "step": FOREGROUND, "tail": "the port is taken"}
    assert once(engine).ended == 1
    assert RuntimeInstance.objects.get(attempt=attempt).error_message == NO_WORDS


def test_a_container_that_is_just_being_removed_has_not_ended_yet() -> None:
    attempt = ready_attempt()
    once(having(attempt, running=False, exit_code=None))
    assert state(attempt)[0] == "running"


def test_a_list_that_was_read_too_early_loses_nothing() -> None:
    attempt = ready_attempt()
    engine = Engine()
    engine.between = lambda: engine.containers.update({attempt.run_id: running(attempt.run_id)})
    assert once(engine) == Reconciliation()
    assert state(attempt)[0] == "running"


def test_what_somebody_has_begun_to_stop_in_the_meantime_is_not_lost() -> None:
    attempt = ready_attempt()
    engine = Engine()
    engine.between = lambda: workspaces.begin_stop(attempt, message="Stop.")
    assert once(engine) == Reconciliation()
    assert state(attempt)[0] == "stopping"


def test_what_another_engine_has_is_not_lost() -> None:
    attempt = ready_attempt()
    RuntimeInstance.objects.update(engine_id="another")
    assert once(Engine()) == Reconciliation()
    assert state(attempt)[0] == "running"


def test_an_engine_that_is_away_changes_no_row() -> None:
    attempt = ready_attempt()
    before = RuntimeInstance.objects.values().get(attempt=attempt)
    with pytest.raises(LaunchError):
        once(Engine(away=True))
    engine = Engine()
    engine.between = lambda: setattr(engine, "away", True)
    with pytest.raises(LaunchError):
        once(engine)
    assert RuntimeInstance.objects.values().get(attempt=attempt) == before


# ---------------------------------------------------------------- what no row wants


def test_a_container_that_no_row_wants_goes_when_it_is_old_enough() -> None:
    old, young = uuid.uuid4(), uuid.uuid4()
    engine = Engine({old: running(old), young: running(young, created_at=datetime.now(UTC))})
    assert once(engine) == Reconciliation(removed=1)
    assert engine.removed == [old]
    assert once(engine, grace=timedelta()) == Reconciliation(removed=1)


def test_one_that_cannot_be_removed_keeps_no_other_container_network_or_volume() -> None:
    stuck, other, deleted = uuid.uuid4(), uuid.uuid4(), make_job().attempt.workspace
    Workspace.objects.filter(pk=deleted.pk).update(deleted_at=Now())
    engine = Engine({each: running(each) for each in (stuck, other)}, {deleted.pk}, stuck={stuck})
    engine.kept_networks = {stuck}
    assert once(engine) == Reconciliation(removed=1)
    assert engine.removed == [other]
    assert (engine.kept_networks & {stuck, other}, engine.volumes) == (set(), set())


def test_an_engine_that_goes_away_while_it_removes_one_ends_the_pass() -> None:
    stuck, other = uuid.uuid4(), uuid.uuid4()
    engine = Engine({each: running(each) for each in (stuck, other)}, stuck={stuck})
    engine.at_stuck = lambda: setattr(engine, "away", True)
    with pytest.raises(LaunchError, match="does not answer"):
        once(engine)
    assert engine.removed == []


def test_a_launch_in_progress_keeps_its_container_and_its_network() -> None:
    job = claim(make_job())
    attempt_steps.start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    engine = having(job.attempt, running=False, exit_code=None)
    assert once(engine, grace=timedelta()) == Reconciliation()
    assert job.attempt.run_id in engine.kept_networks


def test_a_launch_that_began_during_the_pass_keeps_its_network() -> None:
    """Nothing is connected to it before its container starts, and a pass may take minutes."""
    unwanted = uuid.uuid4()
    began: list[Attempt] = []

    class BusyEngine(Engine):
        def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
            began.append(claim(make_job()).attempt)
            return super().remove(run_id, collect=collect)

    engine = BusyEngine({unwanted: running(unwanted)})
    assert once(engine) == Reconciliation(removed=1)
    assert engine.kept_networks == {attempt.run_id for attempt in began}


def test_the_network_of_what_was_stopped_goes_though_one_that_ended_by_itself_keeps_its_own() -> (
    None
):
    stopped, ended = ready_attempt(), ready_attempt()
    assert workspaces.stop_runtime(stopped, code="stopped", message="Stopped.")
    engine = having(ended, running=False, exit_code=0)
    assert once(engine) == Reconciliation(ended=1)
    assert once(engine) == Reconciliation()
    assert engine.kept_networks == {ended.run_id}


def test_what_is_being_stopped_is_left_to_who_stops_it() -> None:
    attempt = ready_attempt()
    workspaces.begin_stop(attempt, message="Stop.")
    engine = having(attempt, running=False, exit_code=0)
    assert once(engine, grace=timedelta(), keep_ended=timedelta()) == Reconciliation()
    assert engine.removed == []


def test_volumes_go_with_their_deleted_workspace_and_stay_with_any_other() -> None:
    kept, deleted = ready_attempt().workspace_id, ready_attempt().workspace_id
    Workspace.objects.filter(pk=deleted).update(deleted_at=Now())
    engine = Engine(volumes={kept, deleted})
    once(engine, orphans=Orphans(keep=timedelta()))
    once(engine, orphans=Orphans(keep=timedelta()))
    assert engine.volumes == {kept}


def test_volumes_that_no_row_knows_go_only_after_a_time_of_being_seen() -> None:
    engine = Engine(volumes={uuid.uuid4()})
    for orphans in (None, Orphans(keep=KEEP)):
        for _ in range(3):
            once(engine, orphans=orphans)
    assert len(engine.volumes) == 1
    short = Orphans(keep=timedelta())
    once(engine, orphans=short)
    assert len(engine.volumes) == 1  # it is seen for the first time
    once(engine, orphans=short)
    assert engine.volumes == set()


def test_volumes_whose_row_comes_back_are_not_counted_on() -> None:
    orphans = Orphans(keep=timedelta())
    workspace_id = uuid.uuid4()
    engine = Engine(volumes={workspace_id})
    once(engine, orphans=orphans)
    row = Workspace.objects.create(pk=workspace_id, owner_user_id=OWNER, name="Restored")
    once(engine, orphans=orphans)
    row.delete()
    once(engine, orphans=orphans)
    assert engine.volumes == {workspace_id}


# ---------------------------------------------------------------- several workers, many rows


@pytest.mark.django_db(transaction=True)
def test_one_worker_at_a_time_reconciles_an_engine() -> None:
    ready_attempt()
    asked: list[Reconciliation] = []

    def second() -> None:
        if asked:
            return

        def work() -> None:
            asked.append(once(Engine()))
            connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(LONG_WAIT)

    engine = Engine()
    engine.between = second
    assert once(engine) == Reconciliation(lost=1)
    assert asked == [Reconciliation()]


@pytest.mark.parametrize("lost", [0, 500, 1000])
def test_a_thousand_workspaces_take_a_few_queries_however_many_are_lost(lost: int) -> None:
    attempts = ready_attempts(1000)
    engine = having(*attempts[lost:])
    engine.volumes = {attempt.workspace_id for attempt in attempts}
    with CaptureQueriesContext(connection) as queries:
        assert once(engine) == Reconciliation(lost=lost)
    assert len(queries) <= 20, [query["sql"][:100] for query in queries]
    statuses = Counter(Sandbox.objects.values_list("status", flat=True))
    assert (statuses["failed"], statuses["ready"]) == (lost, 1000 - lost)
    assert WorkspaceEvent.objects.filter(type="runtime.failed").count() == lost


# ---------------------------------------------------------------- the warm pool


def test_what_waits_in_the_warm_pool_is_wanted_and_what_has_no_row_is_not() -> None:
    waits, nobodys = member_of(), uuid.uuid4()
    engine = Engine({each: running(each) for each in (waits.pk, nobodys)})
    once(engine)
    assert engine.removed == [nobodys]
    assert waits.pk in engine.kept_networks


def test_the_network_of_what_a_run_took_is_kept_for_as_long_as_the_run_is_wanted() -> None:
    attempt = ready_attempt()
    member = member_of(attempt.run_id)
    engine = having(attempt)
    once(engine)
    assert member.pk in engine.kept_networks
    RuntimeInstance.objects.update(status="stopped", finished_at=Now())
    Attempt.objects.update(status="failed", finished_at=Now())
    once(engine)
    assert member.pk not in engine.kept_networks


def test_what_is_claimed_between_the_looks_at_the_rows_is_wanted() -> None:
    member = member_of()
    assert WarmMember.objects.ready(member.pk)
    engine = Engine({member.pk: running(member.pk)})
    started: list[str] = []

    def start(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        if not started and sql.startswith("SELECT") and 'FROM "workspaces_attempt"' in sql:
            started.append(sql)
            run_id = make_job().attempt.run_id
            key, engine_id = member.plan_id, member.engine_id
            assert WarmMember.objects.claim(key=key, engine_id=engine_id, run_id=run_id)
        return answer

    with connection.execute_wrapper(start):
        once(engine)
    assert len(started) == 1
    assert engine.removed == []
    assert member.pk in engine.kept_networks


def test_what_was_claimed_for_a_run_that_is_over_is_removed() -> None:
    """Its worker died before it took it, and nobody else went on with the run."""
    member = member_of(uuid.uuid4())
    engine = Engine({member.pk: running(member.pk)})
    once(engine)
    assert engine.removed == [member.pk]
