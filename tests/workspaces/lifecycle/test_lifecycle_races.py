"""Callers at the same moment, claims of workers that died, and engines that are away."""

from __future__ import annotations

import builtins
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now

from controlplane.errors import Conflict
from controlplane.work.models import Heartbeat
from tests.bench.empty_jobs import NoEngine
from tests.factories import OWNER, claim, make_job, make_worker
from tests.runs.ready import ready_attempt
from tests.support import attempt_steps
from tests.support.locked_rows import locked
from tests.workspaces.lifecycle.test_races import at_once
from workspaces.lifecycle import teardown as execution
from workspaces.lifecycle.attempt_states import attempt_states
from workspaces.lifecycle.reconciler import reconcile
from workspaces.lifecycle.teardown import LEASE, TransitionExecutor
from workspaces.lifecycle.transition_worker import TransitionWorker
from workspaces.lifecycle.transitions import (
    NewStart,
    TransitionRequest,
    request_transition,
    start_workspace,
)
from workspaces.models import (
    Attempt,
    BuildJob,
    EgressAuthority,
    LeaseLost,
    RuntimeInstance,
    Transition,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import Collect, LaunchedRuntime, LaunchError, ObservedRuntime

STOP, DELETE = Transition.Kind.STOP, Transition.Kind.DELETE
STALE = timedelta(minutes=20)
ROUNDS = 10


@dataclass
class Engine(NoEngine):
    """Has containers that never were, and may be away; remembers what it was told, in order."""

    running: set[uuid.UUID] = field(default_factory=set)
    kept: set[uuid.UUID] = field(default_factory=set)
    away: bool = False
    told: builtins.list[str] = field(default_factory=list)
    without_containers: set[uuid.UUID] = field(default_factory=set)
    on: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What happens while it is told something."""

    def _tell(self, what: str) -> None:
        if self.away:
            raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.")
        self.told.append(what)
        self.on.get(what, lambda: None)()

    def engine_id(self) -> str:
        """Be the engine of the rows."""
        self._tell("engine_id")
        return "engine"

    def observe(self, run_id: uuid.UUID) -> ObservedRuntime | None:
        """Show what runs."""
        self._tell("observe")
        return observed(run_id) if run_id in self.running else None

    def list(self, workspace_id: uuid.UUID | None = None) -> builtins.list[ObservedRuntime]:
        """Show all that runs."""
        self._tell("list")
        return [observed(run_id) for run_id in self.running]

    def stop(self, run_id: uuid.UUID, *, seconds: float) -> bool:
        """Stop it."""
        self._tell("stop")
        return run_id in self.running

    @contextmanager
    def read_files(self, *_: object, **__: object) -> Iterator[None]:
        """Have no files."""
        self._tell("read")
        yield None

    def remove_containers(self, run_id: uuid.UUID) -> bool:
        """Remove what it runs in."""
        self._tell("remove")
        self.without_containers.add(run_id)
        self.running.discard(run_id)
        return True

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        """Remove it, if that was not done, and its network."""
        self._tell("remove network" if run_id in self.without_containers else "remove")
        self.running.discard(run_id)
        return True

    def remove_volumes(self, workspace_id: uuid.UUID) -> int:
        """Remove two."""
        self._tell("remove_volumes")
        self.kept.discard(workspace_id)
        return 2

    def workspaces_with_volumes(self) -> set[uuid.UUID]:
        """Show what has volumes."""
        return set(self.kept)

    def acts(self) -> Sequence[str]:
        """What changed something."""
        return [one for one in self.told if one in ("stop", "remove", "remove_volumes")]


def observed(run_id: uuid.UUID) -> ObservedRuntime:
    return ObservedRuntime(
        run_id=run_id,
        job_id=uuid.UUID(int=1),
        attempt_count=1,
        resource_id="0" * 64,
        reference=f"svc-{run_id}",
        running=True,
        exit_code=None,
        oom_killed=False,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def executor(engine: NoEngine) -> TransitionExecutor:
    return TransitionExecutor(adapter=engine, grace=timedelta(seconds=1), stale=STALE)


def transition_worker(
    engine: NoEngine, worker_id: str = "worker-a", *, is_reliable: bool = True
) -> TransitionWorker:
    make_worker(worker_id)
    return TransitionWorker(
        worker_id, executor(engine), stale=STALE, is_reliable=lambda: is_reliable
    )


def attend(engine: NoEngine, worker_id: str = "worker-a") -> None:
    transition_worker(engine, worker_id).run(threading.Event())


def transition_request(workspace_id: uuid.UUID, kind: Transition.Kind = STOP) -> TransitionRequest:
    return TransitionRequest(workspace_id=workspace_id, kind=kind, owner_user_id=OWNER)


def claimed(worker_id: str) -> Transition | None:
    alive = Heartbeat.objects.alive(stale=STALE)
    return Transition.objects.claim_next(worker_id, alive=alive, lease=LEASE)


def asked(kind: Transition.Kind = STOP) -> Attempt:
    """A workspace that ran and is wanted to end."""
    attempt = ready_attempt()
    assert request_transition(transition_request(attempt.workspace_id, kind))
    return attempt


def told(attempt: Attempt) -> list[str]:
    events = WorkspaceEvent.objects.filter(workspace_id=attempt.workspace_id).order_by("pk")
    return list(events.values_list("type", flat=True))


# ---------------------------------------------------------------- callers at the same moment


@pytest.mark.django_db(transaction=True)
def test_simultaneous_stops_and_deletes_are_one_transition_and_the_delete_wins() -> None:
    kinds = [STOP, DELETE, STOP, DELETE, STOP, DELETE]
    for _ in range(ROUNDS):
        workspace_id = ready_attempt().workspace_id
        requests = [transition_request(workspace_id, kind) for kind in kinds]
        got = at_once(6, lambda at, of=requests: request_transition(of[at]))  # type: ignore[misc]
        assert set(got) <= {True, False}
        assert Transition.objects.get(workspace_id=workspace_id).kind == DELETE


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("build_queue")
def test_simultaneous_starts_make_one_attempt() -> None:
    attempt = asked()
    attend(Engine(running={attempt.run_id}))
    start = NewStart(workspace_id=attempt.workspace_id, owner_user_id=OWNER)
    got = at_once(4, lambda _: start_workspace(start))
    refused = [one for one in got if isinstance(one, Conflict)]
    assert [one.code for one in refused] == ["workspace-active"] * 3
    assert Attempt.objects.filter(workspace_id=attempt.workspace_id).count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_stop_beside_the_end_of_a_launch_either_cancels_it_or_stops_what_runs() -> None:
    for _ in range(ROUNDS):
        job = claim(make_job())
        attempt = job.attempt
        attempt_steps.start_attempt(attempt, worker_id="worker-a", attempt_count=1)
        attempt_steps.await_runtime(attempt, published={})
        BuildJob.objects.filter(pk=job.pk).update(
            status="succeeded", published_digest="sha256:0", finished_at=Now()
        )

        def finish(job: BuildJob = job) -> None:
            with suppress(LeaseLost), transaction.atomic():
                BuildJob.objects.write(job.fence, lease_expires_at=None)
                resource = "0" * 64
                launched = LaunchedRuntime("docker", resource, "svc", f"x://{resource}", "engine")
                attempt_steps.mark_ready(job.attempt, launched)

        both = [
            finish,
            lambda job=job: request_transition(transition_request(job.attempt.workspace_id)),
        ]
        at_once(2, lambda at, of=both: of[at]())  # type: ignore[misc]

        runtime = RuntimeInstance.objects.get(attempt=attempt)
        attempt.refresh_from_db()
        assert (attempt.status, runtime.status) in {
            ("cancelled", "stopped"),
            ("succeeded", "stopping"),
        }
        assert Transition.objects.get(workspace_id=attempt.workspace_id).kind == STOP


@pytest.mark.django_db(transaction=True)
def test_simultaneous_workers_each_claim_what_nobody_else_has() -> None:
    for number in range(4):
        make_worker(f"worker-{number}")
    for _ in range(4):
        asked()
    got = at_once(4, lambda at: claimed(f"worker-{at}"))
    assert len({one.pk for one in got if one is not None}) == sum(one is not None for one in got)
    left = [claimed("worker-0") for _ in range(5)]
    assert sum(one is not None for one in [*got, *left]) == 4


# ---------------------------------------------------------------- claims


@pytest.mark.django_db(transaction=True)
def test_a_transition_that_is_being_written_is_passed_over_for_the_next_one() -> None:
    first, second = asked(), asked()
    make_worker("worker-a")
    waits_longest = Transition.objects.get(workspace_id=first.workspace_id)

    with locked(waits_longest):
        taken = claimed("worker-a")
        assert taken is not None
        assert taken.workspace_id == second.workspace_id
        assert claimed("worker-a") is None

    taken = claimed("worker-a")
    assert taken is not None
    assert taken.pk == waits_longest.pk


@pytest.mark.django_db
def test_what_a_dead_worker_held_is_claimed_at_once_and_what_a_living_one_holds_is_not() -> None:
    asked()
    make_worker("worker-a")
    first = claimed("worker-a")
    assert first is not None
    assert claimed("worker-b") is None
    Heartbeat.objects.update(seen_at=Now() - 2 * STALE)
    # Whose own heartbeat was late may not say of another that it is dead.
    assert Transition.objects.claim_next("worker-b", alive=None, lease=LEASE) is None
    second = claimed("worker-b")
    assert second is not None
    assert second.claim_count == first.claim_count + 1
    assert not Transition.objects.renew(first.fence, lease=LEASE)


@pytest.mark.django_db(transaction=True)
def test_after_the_database_was_away_nobody_is_taken_for_dead_at_once() -> None:
    """Then every heartbeat is old, also that of a worker that is just stopping a workspace."""
    attempt = asked()
    make_worker("worker-a", seen=2 * STALE)
    held = claimed("worker-a")
    assert held is not None
    engine = Engine(running={attempt.run_id})
    transition_worker(engine, "worker-b", is_reliable=False).run(threading.Event())
    assert engine.told == []
    assert Transition.objects.held_by(held.fence).exists()
    transition_worker(engine, "worker-b").run(threading.Event())
    assert not Transition.objects.open().exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("grace", [timedelta(seconds=10), timedelta(minutes=30)])
def test_a_claim_outlasts_the_time_that_a_container_has_to_end(grace: timedelta) -> None:
    attempt = asked()
    engine = Engine(running={attempt.run_id})
    left: list[timedelta] = []

    def look() -> None:
        ends = Transition.objects.annotate(left=F("lease_expires_at") - Now())
        left.append(ends.values_list("left", flat=True)[0])

    engine.on["stop"] = look
    mine = TransitionExecutor(adapter=engine, grace=grace, stale=STALE)
    make_worker("worker-a")
    TransitionWorker("worker-a", mine, stale=STALE, is_reliable=lambda: True).run(threading.Event())
    (left_at_stop,) = left
    assert left_at_stop > 2 * grace + timedelta(seconds=65)
    assert not Transition.objects.open().exists()


@pytest.mark.django_db
def test_a_lease_that_is_over_is_anybodys() -> None:
    asked()
    make_worker("worker-a")
    assert claimed("worker-a") is not None
    Transition.objects.update(lease_expires_at=Now() - timedelta(seconds=1))
    assert claimed("worker-b") is not None


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_slept_through_its_lease_writes_nothing() -> None:
    attempt = asked()
    make_worker("worker-a")
    slept = claimed("worker-a")
    assert slept is not None
    Transition.objects.update(claim_count=7, worker_id="worker-b")
    with pytest.raises(LeaseLost):
        executor(Engine()).execute(slept, threading.Event())
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    assert Transition.objects.open().exists()


@pytest.mark.django_db(transaction=True)
def test_a_claim_whose_answer_was_lost_is_found_again_by_its_worker() -> None:
    asked()
    engine = Engine()
    mine = transition_worker(engine)
    assert claimed("worker-a") is not None
    engine.on["engine_id"] = lambda: None
    mine.run(threading.Event())
    assert Transition.objects.open().exists()  # held, as far as anybody knows
    other = asked()

    def breaks() -> None:
        engine.on.clear()
        raise OperationalError("the connection broke")

    engine.on["engine_id"] = breaks
    with pytest.raises(OperationalError):
        mine.run(threading.Event())
    mine.run(threading.Event())
    assert not Transition.objects.open().exists()
    assert RuntimeInstance.objects.get(attempt=other).status == "stopped"


# ---------------------------------------------------------------- carrying out


@pytest.mark.django_db(transaction=True)
def test_the_container_is_gone_before_the_row_says_stopped() -> None:
    attempt = asked()
    seen: list[str] = []
    engine = Engine(running={attempt.run_id})
    for act in ("stop", "remove"):
        engine.on[act] = lambda: seen.append(RuntimeInstance.objects.get(attempt=attempt).status)
    attend(engine)
    assert engine.acts() == ["stop", "remove"]
    assert seen == ["stopping", "stopping"]
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopped"
    assert told(attempt)[-2:] == ["runtime.stopped", "workspace.stopped"]


@pytest.mark.django_db(transaction=True)
def test_a_stop_that_only_cancelled_a_build_is_told_like_any_other() -> None:
    job = make_job()
    assert request_transition(transition_request(job.attempt.workspace_id))
    attend(Engine())
    expected = ["workspace.stop-requested", "attempt.cancelled", "workspace.stopped"]
    assert told(job.attempt)[-3:] == expected


@pytest.mark.django_db(transaction=True)
def test_the_volumes_are_gone_before_the_row_says_deleted_and_its_keys_with_it() -> None:
    attempt = asked(DELETE)
    EgressAuthority.objects.create(
        workspace_id=attempt.workspace_id, certificate="", sealed_key=b""
    )
    engine = Engine(running={attempt.run_id})
    seen: list[object] = []
    engine.on["remove_volumes"] = lambda: seen.append(
        Workspace.objects.get(pk=attempt.workspace_id).deleted_at
    )
    attend(engine)
    assert engine.acts() == ["stop", "remove", "remove_volumes"]
    assert seen == [None]
    assert Workspace.objects.get(pk=attempt.workspace_id).deleted_at is not None
    assert not EgressAuthority.objects.exists()
    event = WorkspaceEvent.objects.get(type="workspace.deleted")
    assert event.data == {"volumes": 2}


@pytest.mark.django_db(transaction=True)
def test_a_stop_that_becomes_a_delete_on_the_way_ends_as_a_delete() -> None:
    for act in ("observe", "stop", "remove", "remove network"):
        attempt = asked()
        engine = Engine(running={attempt.run_id})
        engine.on[act] = lambda of=attempt: request_transition(
            transition_request(of.workspace_id, DELETE)
        )  # type: ignore[misc]
        attend(engine)
        assert Workspace.objects.get(pk=attempt.workspace_id).deleted_at is not None, act
        assert not Transition.objects.open().exists()
        assert told(attempt).count("workspace.deleted") == 1


@pytest.mark.django_db(transaction=True)
def test_an_engine_that_is_away_is_waited_for_and_named() -> None:
    attempt = asked()
    engine = Engine(running={attempt.run_id}, away=True)
    attend(engine)
    reason = attempt_states([attempt])[attempt.pk].reason
    assert reason is not None
    assert reason.code == "stopping"
    assert "adapter-unavailable" in reason.message
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    engine.away = False
    attend(engine)
    assert Transition.objects.open().exists()  # not before its time
    Transition.objects.update(retry_at=Now())
    attend(engine)
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopped"


@pytest.mark.django_db(transaction=True)
def test_one_transition_that_fails_for_a_reason_of_ours_keeps_no_other_waiting() -> None:
    first, second = asked(), asked()
    engine = Engine(running={second.run_id})

    def breaks() -> None:
        engine.on.clear()
        raise RuntimeError("a fault of ours")

    engine.on["observe"] = breaks
    attend(engine)
    assert Transition.objects.get(workspace_id=first.workspace_id).waiting_code == "internal-error"
    assert RuntimeInstance.objects.get(attempt=second).status == "stopped"
    Transition.objects.update(retry_at=Now())
    attend(engine)
    assert RuntimeInstance.objects.get(attempt=first).status == "stopped"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broken", ["stop", "read"])
def test_a_container_that_cannot_be_stopped_or_read_is_removed_nevertheless(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "DRAIN_WAITS", (0.0, 0.0, 0.0))
    attempt = asked()
    engine = Engine(running={attempt.run_id})

    def breaks() -> None:
        raise LaunchError("adapter-unavailable", "The Docker Engine did not do what was asked.")

    engine.on[broken] = breaks
    attend(engine)
    assert engine.acts()[-1] == "remove"
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopped"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broken", ["stop", "read"])
def test_nothing_is_removed_when_the_engine_goes_away_before_all_was_read(broken: str) -> None:
    attempt = asked()
    engine = Engine(running={attempt.run_id})

    def breaks() -> None:
        engine.away = True
        raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.")

    engine.on[broken] = breaks
    attend(engine)
    assert "remove" not in engine.acts()
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    engine.away, engine.on = False, {}
    Transition.objects.update(retry_at=Now())
    attend(engine)
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopped"


@pytest.mark.django_db(transaction=True)
def test_another_engines_workspace_is_left_to_a_worker_of_that_engine() -> None:
    attempt = asked()
    RuntimeInstance.objects.update(engine_id="another")
    engine = Engine()
    attend(engine)
    assert engine.acts() == []
    transition = Transition.objects.get(workspace_id=attempt.workspace_id)
    assert (transition.waiting_code, transition.worker_id) == ("other-engine", "")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [STOP, DELETE])
def test_nothing_is_removed_while_a_worker_still_lets_go_of_a_cancelled_build(
    kind: Transition.Kind,
) -> None:
    job = claim(make_job())
    make_worker("worker-a")
    assert request_transition(transition_request(job.attempt.workspace_id, kind))
    engine = Engine()
    attend(engine, "worker-b")
    assert engine.acts() == []
    BuildJob.objects.drop(job.fence)
    Transition.objects.update(retry_at=Now())
    attend(engine, "worker-b")
    assert "remove" in engine.acts()
    assert not Transition.objects.open().exists()


@pytest.mark.django_db(transaction=True)
def test_a_dead_worker_lets_go_of_a_cancelled_build_by_being_dead() -> None:
    job = claim(make_job())
    make_worker("worker-a", seen=2 * STALE)
    assert request_transition(transition_request(job.attempt.workspace_id, DELETE))
    attend(Engine(), "worker-b")
    assert not Transition.objects.open().exists()


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_stops_gives_its_transition_back() -> None:
    asked()
    stopped = threading.Event()
    engine = Engine()
    engine.on["engine_id"] = stopped.set
    transition_worker(engine).run(stopped)
    transition = Transition.objects.get()
    assert (transition.worker_id, transition.lease_expires_at) == ("", None)
    attend(Engine(), "worker-b")
    assert not Transition.objects.open().exists()


# ---------------------------------------------------------------- beside the reconciler


@pytest.mark.django_db(transaction=True)
def test_the_reconciler_leaves_what_is_being_stopped_to_who_stops_it() -> None:
    attempt = asked()
    for running in ({attempt.run_id}, set[uuid.UUID]()):
        engine = Engine(running=running)
        reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=timedelta())
        assert engine.acts() == []
        assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"


@pytest.mark.django_db(transaction=True)
def test_a_stop_beside_the_reconciler_is_no_loss() -> None:
    attempt = ready_attempt()
    engine = Engine()
    engine.on["list"] = lambda: request_transition(transition_request(attempt.workspace_id))
    reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=timedelta())
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"


@pytest.mark.django_db(transaction=True)
def test_the_reconciler_removes_volumes_of_deleted_workspaces_and_of_no_others() -> None:
    deleted, live = asked(DELETE), ready_attempt()
    attend(Engine(running={deleted.run_id}))
    unknown = uuid.uuid4()
    engine = Engine(running={live.run_id})
    engine.kept = {deleted.workspace_id, live.workspace_id, unknown}
    reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=timedelta())
    assert engine.kept == {live.workspace_id, unknown}


@pytest.mark.django_db(transaction=True)
def test_several_threads_of_a_worker_carry_out_several_transitions() -> None:
    attempts = [asked() for _ in range(6)]
    engine = Engine(running={attempt.run_id for attempt in attempts})
    mine = transition_worker(engine)

    def look(number: int) -> None:
        for _ in range(10):
            mine.run(threading.Event(), number + 1)

    assert at_once(3, look) == [None] * 3
    assert not Transition.objects.open().exists()
    assert engine.acts().count("remove") == 6
