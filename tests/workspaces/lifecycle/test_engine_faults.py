"""Engines that are killed, cut off, full or hung at random moments: what must hold after each.

The rows, the placement, the workers' claims and everything that they write are the product's; the
engines are stand-ins that remember their containers, and time passes when the test says so. At
every moment containers of a workspace run on one engine at the most; in the end, when all engines
answer again, what runs is just what the rows say, and nothing waits.

On one engine a container that a launch left behind may run beside the next one until that engine's
reconciler removes it, as it always may.
"""

from __future__ import annotations

import builtins
import os
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from builds import job_sweeper
from builds.images.compiler import BuiltImage
from builds.pipeline.job_slots import BuildSlotNeeded
from builds.pipeline.job_state import JobState
from builds.planner import ImagePlan
from controlplane.errors import Conflict, ControlPlaneError, JobError
from controlplane.work.leases import LeaseLost
from controlplane.work.models import Heartbeat
from tests.bench.empty_jobs import NoCompiler, NoEngine, empty_runner
from tests.factories import OWNER, make_job
from tests.support.engines import GIB, STALE, persistent, silence
from workspaces.lifecycle.attempt_states import attempt_states
from workspaces.lifecycle.engines import forget_named
from workspaces.lifecycle.placement import place_waiting
from workspaces.lifecycle.reconciler import reconcile
from workspaces.lifecycle.start import retry_sandbox
from workspaces.lifecycle.teardown import TransitionExecutor
from workspaces.lifecycle.transition_worker import TransitionWorker
from workspaces.lifecycle.transitions import TransitionRequest, request_transition
from workspaces.models import (
    Attempt,
    BuildJob,
    Engine,
    RuntimeInstance,
    Transition,
    Workspace,
)
from workspaces.runtimes.base import (
    Collect,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
)

FAULTS = int(os.environ.get("ENGINE_FAULTS", "30"))
"""How many; ENGINE_FAULTS=200 by hand."""
SEED = int(os.environ.get("ENGINE_FAULTS_SEED", "19"))
NAMES = ("alpha", "beta", "gamma")
LEASE = timedelta(minutes=15)
DAY = timedelta(days=1)


class WorkerKilled(BaseException):
    """The worker dies here: nothing more of it is written."""


@dataclass
class Container:
    """What a launch has made on an engine."""

    run_id: uuid.UUID
    workspace_id: uuid.UUID
    job_id: uuid.UUID
    count: int
    restarts: bool
    running: bool = True


@dataclass
class StandIn(NoEngine):
    """An engine with a memory; ``away`` answers nobody, and what runs there runs on."""

    engine_name: str
    containers: dict[uuid.UUID, Container] = field(default_factory=dict)
    volumes: set[uuid.UUID] = field(default_factory=set)
    away: bool = False
    full: bool = False
    at_launch: Callable[[str], None] = lambda moment: None

    def _answer(self) -> None:
        if self.away:
            raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.")

    def engine_id(self) -> str:
        """Say who it is."""
        self._answer()
        return f"id-of-{self.engine_name}"

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Make a container, or adopt the run's; anything may happen before and after."""
        self._answer()
        self.at_launch("before")
        self._answer()
        if self.full:
            raise LaunchError("launch-refused", "No space left on device.")
        found = self.containers.get(request.run_id)
        if found is not None and found.count > request.attempt_count:
            raise LaunchError("launch-superseded", "A newer launch owns it.")
        self.containers[request.run_id] = Container(
            request.run_id,
            request.workspace_id,
            request.job_id,
            request.attempt_count,
            request.restart,
        )
        if request.volumes:
            self.volumes.add(request.workspace_id)
        self.at_launch("after")
        if self.away:
            raise LaunchError("adapter-unavailable", "The connection was lost.")
        return LaunchedRuntime(
            "docker",
            request.run_id.hex,
            f"svc-{request.run_id}",
            f"docker-exec://{self.engine_name}/{request.run_id.hex}",
            engine_id=f"id-of-{self.engine_name}",
        )

    def observe(self, run_id: uuid.UUID) -> ObservedRuntime | None:
        """Show one."""
        self._answer()
        return seen(self.containers[run_id]) if run_id in self.containers else None

    def list(self, workspace_id: uuid.UUID | None = None) -> builtins.list[ObservedRuntime]:
        """Show them."""
        self._answer()
        return [
            seen(each)
            for each in self.containers.values()
            if workspace_id in (None, each.workspace_id)
        ]

    def stop(self, run_id: uuid.UUID, *, seconds: float) -> bool:
        """Stop one."""
        self._answer()
        if run_id in self.containers:
            self.containers[run_id].running = False
        return run_id in self.containers

    def remove_containers(self, run_id: uuid.UUID) -> bool:
        """Remove one."""
        self._answer()
        return self.containers.pop(run_id, None) is not None

    def remove(self, run_id: uuid.UUID, *, collect: Collect | None = None) -> bool:
        """Remove one."""
        return self.remove_containers(run_id)

    def remove_volumes(self, workspace_id: uuid.UUID) -> int:
        """Remove what is kept."""
        self._answer()
        self.volumes.discard(workspace_id)
        return 1

    def workspaces_with_volumes(self) -> set[uuid.UUID]:
        """Show what is kept."""
        self._answer()
        return set(self.volumes)

    @contextmanager
    def read_files(self, *_: Any, **__: Any) -> Iterator[None]:
        """Have no files."""
        self._answer()
        yield None

    def power_off(self) -> None:
        """Kill the machine: what runs ends."""
        self.away = True
        for each in self.containers.values():
            each.running = False

    def come_back(self) -> None:
        """Answer again; what starts with its engine runs again."""
        self.away = self.full = False
        for each in self.containers.values():
            each.running = each.running or each.restarts


def seen(container: Container) -> ObservedRuntime:
    return ObservedRuntime(
        run_id=container.run_id,
        job_id=container.job_id,
        attempt_count=container.count,
        resource_id=container.run_id.hex,
        reference=f"svc-{container.run_id}",
        running=container.running,
        exit_code=None if container.running else 137,
        oom_killed=False,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@dataclass(frozen=True)
class Compiler(NoCompiler):
    """Builds nothing, and anything may happen meanwhile."""

    at_build: Callable[[str], None] = lambda moment: None

    def build(self, plan: ImagePlan, *, job_id: uuid.UUID, **_: Any) -> BuiltImage:
        """Pretend."""
        self.at_build("build")
        return super().build(plan, job_id=job_id)


class World:
    """The engines, a worker of each, and what happens to them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.faults: Counter[str] = Counter()
        self.planned: list[str] = []
        self.depth = 0
        self.forgotten: set[str] = set()
        self.engines = {name: StandIn(name) for name in NAMES}
        self.generation = Counter(dict.fromkeys(NAMES, 0))
        compiler = Compiler()
        object.__setattr__(compiler, "at_build", self.something)
        self.runners = {}
        for name, engine in self.engines.items():
            engine.at_launch = self.something
            runner = empty_runner(engine)
            builder = replace(runner.builder, compiler=compiler)
            self.runners[name] = replace(runner, builder=builder)
            Engine.objects.create(name=name, engine_id=engine.engine_id(), memory_bytes=16 * GIB)
        self.busy: list[str] = []

    def worker_id(self, name: str) -> str:
        return f"worker-{name}-{self.generation[name]}"

    # ------------------------------------------------------------ what workers do

    def beat(self) -> None:
        """Have time pass: engines that answer are heard, the others are not for long."""
        for name, engine in self.engines.items():
            Heartbeat.objects.beat(
                self.worker_id(name),
                kind=Heartbeat.Kind.BUILD,
                hostname="test",
                pid=1,
                capacity=1,
                engine_id=f"id-of-{name}",
            )
            if engine.away:
                silence(name)
            else:
                Engine.objects.heard(
                    name, engine_id=f"id-of-{name}", memory_bytes=16 * GIB, cpus=4, images=[]
                )

    def work(self, name: str) -> None:
        """Have the worker of an engine place, claim and carry out what it can."""
        if name in self.busy:
            return
        self.busy.append(name)
        try:
            place_waiting(stale=STALE)
            for job_id in job_sweeper.claimable_jobs(
                overdue=timedelta(), stale=DAY, limit=3, expire=False, engine=name
            ):
                self.run_job(name, job_id)
            job_sweeper.repair_attempts()
            self.transitions(name)
            with suppress(LaunchError):
                reconcile(
                    self.engines[name],
                    instance_id="test",
                    grace=timedelta(),
                    keep_ended=DAY,
                    engine=name,
                )
        finally:
            self.busy.remove(name)

    def run_job(self, name: str, job_id: uuid.UUID) -> None:
        job = JobState.claim(job_id, worker_id=self.worker_id(name), lease=LEASE, engine=name)
        if job is None:
            return
        try:
            self.runners[name].run(job)
        except (LeaseLost, JobError, BuildSlotNeeded):
            pass
        except WorkerKilled:
            self.faults["worker killed"] += 1
            self.replace_worker(name)

    def replace_worker(self, name: str) -> None:
        """A worker has died: its leases run out, and another one comes."""
        dead = self.worker_id(name)
        self.generation[name] += 1
        Heartbeat.objects.filter(pk=dead).delete()
        BuildJob.objects.filter(worker_id=dead, lease_expires_at__isnull=False).update(
            lease_expires_at=Now()
        )

    def transitions(self, name: str) -> None:
        Transition.objects.open().update(retry_at=None)
        executor = TransitionExecutor(
            adapter=self.engines[name], grace=timedelta(seconds=1), stale=STALE
        )
        worker = TransitionWorker(
            self.worker_id(name),
            executor,
            stale=STALE,
            is_reliable=lambda: True,
            engine=name,
        )
        for _ in range(5):
            worker.run(threading.Event())
            if not Transition.objects.open().of_engine(name).filter(retry_at=None).exists():
                break

    # ------------------------------------------------------------ what goes wrong

    def something(self, moment: str) -> None:
        """In the middle of a job: nothing, or a fault that was planned."""
        self.check(f"{moment} a job")
        if not self.planned or self.depth or self.chance.random() < 0.4:
            return
        fault = self.planned.pop()
        name = self.busy[-1]
        self.depth += 1
        try:
            self.fault(fault, name)
        finally:
            self.depth -= 1

    def fault(self, fault: str, name: str) -> None:
        engine = self.engines[name]
        self.faults[fault] += 1
        if fault == "cut off":
            engine.away = True
        elif fault == "powered off":
            engine.power_off()
        elif fault == "full":
            engine.full = True
        elif fault == "worker killed":
            self.faults[fault] -= 1
            if self.busy:
                raise WorkerKilled
            self.faults[fault] += 1
            self.replace_worker(name)
        elif fault == "hung":
            # Its leases run out while it sleeps, its engine is not heard, and all others work.
            BuildJob.objects.filter(
                worker_id=self.worker_id(name), lease_expires_at__isnull=False
            ).update(lease_expires_at=Now())
            silence(name)
            for other in NAMES:
                self.work(other)
        elif fault == "drained":
            Engine.objects.known().filter(pk=name).update(state="draining")
        elif fault == "forgotten":
            self.forget(name)

    def forget(self, name: str) -> None:
        """The operator stops the workers of an engine that is away, and gives it up."""
        if not self.engines[name].away or self.busy:
            return
        if not Engine.objects.known().exclude(pk=name).exists():
            return
        self.replace_worker(name)
        silence(name)
        forget_named(name, by="ada", stale=STALE)
        self.forgotten |= {str(run_id) for run_id in self.engines[name].containers}

    def heal(self, name: str) -> None:
        self.engines[name].come_back()
        Engine.objects.filter(pk=name).update(state="active")

    # ------------------------------------------------------------ what people do

    def people(self) -> None:
        """Start, start again, stop or delete something."""
        act = self.chance.choice(["new", "new", "again", "again", "stop", "delete"])
        if act == "new":
            make_job(spec=persistent() if self.chance.random() < 0.5 else None)
            return
        rows = Workspace.objects.filter(deleted_at=None).order_by("pk")
        if not rows:
            return
        workspace = rows[self.chance.randrange(len(rows))]
        with suppress(Conflict, ControlPlaneError):
            if act == "again" and workspace.latest_sandbox is not None:
                retry_sandbox(workspace.latest_sandbox, requested_by=OWNER)
            else:
                kind = Transition.Kind.STOP if act == "stop" else Transition.Kind.DELETE
                request_transition(
                    TransitionRequest(workspace_id=workspace.pk, kind=kind, owner_user_id=OWNER)
                )

    # ------------------------------------------------------------ what holds

    def running(self) -> dict[uuid.UUID, set[str]]:
        """Return where containers of each workspace run; those that were given up do not count."""
        found: dict[uuid.UUID, set[str]] = {}
        for name, engine in self.engines.items():
            for each in engine.containers.values():
                if each.running and str(each.run_id) not in self.forgotten:
                    found.setdefault(each.workspace_id, set()).add(name)
        return found

    def check(self, when: str) -> None:
        """No workspace runs on two engines."""
        twice = {one: there for one, there in self.running().items() if len(there) > 1}
        assert not twice, (when, twice, self.faults)

    def check_reasons(self) -> None:
        """What runs on an engine that is lost says so, with its name."""
        lost = set(Engine.objects.lost(stale=STALE).values_list("pk", flat=True))
        ready = Attempt.objects.filter(
            runtime__status=RuntimeInstance.Status.RUNNING, runtime__engine_name__in=lost
        )
        for state in attempt_states(ready).values():
            assert state.reason is not None
            assert state.reason.engine in lost

    def settle(self) -> None:
        """Heal everything and let the workers work until nothing is left to do."""
        self.planned.clear()
        for name in NAMES:
            self.heal(name)
            self.replace_worker(name)
        for _ in range(8):
            self.beat()
            for name in NAMES:
                self.work(name)
        self.check("in the end")

    def check_accounts(self) -> None:
        """What runs is what the rows say, nothing waits, and nothing is left over."""
        waiting = BuildJob.objects.exclude(status__in=BuildJob.TERMINAL)
        assert list(waiting.values_list("status", "engine_name")) == []
        assert not BuildJob.objects.filter(lease_expires_at__isnull=False).exists()
        assert not Transition.objects.open().exists()
        rows = RuntimeInstance.objects.filter(status=RuntimeInstance.Status.RUNNING)
        there = {
            (each.run_id, name)
            for name, engine in self.engines.items()
            for each in engine.containers.values()
            if each.running
        }
        assert set(rows.values_list("run_id", "engine_name")) == there
        open_attempts = Attempt.objects.exclude(status__in=Attempt.TERMINAL)
        assert not open_attempts.exists()
        deleted = set(
            Workspace.objects.filter(deleted_at__isnull=False).values_list("pk", flat=True)
        )
        assert not any(engine.volumes & deleted for engine in self.engines.values())


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("build_queue")
def test_no_fault_of_an_engine_gives_a_workspace_two_containers_or_loses_one() -> None:
    chance = random.Random(SEED)
    world = World(chance)
    kinds = ["cut off", "powered off", "full", "worker killed", "hung", "drained", "forgotten"]
    done = 0
    while done < FAULTS:
        world.beat()
        for _ in range(chance.randrange(1, 4)):
            world.people()
        fault = chance.choice(kinds)
        if chance.random() < 0.6 and fault not in ("forgotten", "drained"):
            world.planned.append(fault)
        else:
            with suppress(WorkerKilled):
                world.fault(fault, chance.choice(NAMES))
            done += 1
        before = len(world.planned)
        for name in chance.sample(NAMES, len(NAMES)):
            world.work(name)
            world.check("after a round")
        done += before - len(world.planned)
        world.beat()
        world.check_reasons()
        for name in NAMES:
            if chance.random() < 0.35:
                world.heal(name)
    world.settle()
    world.check_accounts()
    assert sum(world.faults.values()) >= FAULTS
