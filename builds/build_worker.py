"""The build worker: claims build jobs from the queue, and looks after workspaces beside it.

A message names a job. It is claimed with a start slot; where an image has to be built, it goes on
with a build slot, or waits for one as a row and is claimed again when one is free. A job whose
container has started holds no slot (``builds.pipeline.job_slots``).

The sweeper looks for jobs that nobody works on, and asks nobody but the database; the keeper
reconciles containers with rows and removes leftovers, as slowly as the engine may be. The loop
itself is ``controlplane.work.worker``.

The first SIGTERM or SIGINT drains: no new job, those under way are finished. The second stops at
once: builds are killed and their jobs given back for another worker.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from builds import job_sweeper
from builds.pipeline.job_slots import BuildSlotNeeded, JobSlots
from builds.pipeline.job_state import JobState, ShutdownError
from builds.pipeline.runner import JobRunner
from controlplane.database.idle_connections import IdleConnections
from controlplane.errors import JobError
from controlplane.metrics.families import FOUND_BY_SWEEPER, LEASE_RENEWALS
from controlplane.work.amqp import BrokerError, Delivery, MalformedMessage
from controlplane.work.failure_detector import FailureDetector
from controlplane.work.leases import Fence, LeasedQuerySet, LeaseLost
from controlplane.work.models import Heartbeat, SlotUsage
from controlplane.work.periodic import PeriodicTask
from controlplane.work.worker import Worker, WorkerTimes
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.lifecycle.placement import place_waiting, several_engines
from workspaces.lifecycle.reconciler import Orphans, reconcile
from workspaces.models import BuildJob, Engine

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerTimes:
    """How old leftovers are when they are removed, and how long ended containers are kept."""

    grace: timedelta
    keep_ended: timedelta


THREADS = 256
"""Most jobs that a worker is at: those with slots, and the boots that it waits for."""
KEPT_CONNECTIONS = 4
"""Connections to the database that jobs whose boot is waited for leave to others."""


class JobMessage:
    """The message that named a job, as far as there is one; to be settled once."""

    def __init__(
        self, job_id: uuid.UUID, delivery: Delivery | None, *, acknowledged: bool = False
    ) -> None:
        self._job_id = job_id
        self._delivery = delivery
        self._acknowledged = acknowledged

    def settle_early(self) -> None:
        """Acknowledge it although the job is not done: from now on the row's lease is enough."""
        if self._delivery is not None:
            self._delivery.ack()
            self._delivery = None
            self._acknowledged = True

    def settle(self, action: Callable[[Delivery], None]) -> None:
        """Settle it; one that was acknowledged earlier is published again if it has to go on."""
        if self._delivery is not None:
            action(self._delivery)
        elif self._acknowledged and action is not Delivery.ack:
            try:
                BUILD_REQUESTED.publish(self._job_id, dead_letter=action is Delivery.reject)
            except BrokerError as exc:
                # The row says what becomes of the job; the message would only have been quicker.
                log.warning("message_not_published", reason=str(exc))


class BuildWorker(Worker):
    """One build worker process; ``max_jobs`` ends it after so many, done one after the other.

    ``engine`` is the name of the engine that it serves, whose jobs alone it claims; without one it
    claims any. ``report`` writes that the engine answers, and returns how that calls itself.
    """

    kind = Heartbeat.Kind.BUILD

    def __init__(
        self,
        *,
        runner: JobRunner,
        broker_url: str,
        broker_timeout: float,
        builds: int,
        starts: int,
        times: WorkerTimes,
        reconciler: ReconcilerTimes,
        tasks: Sequence[PeriodicTask] = (),
        max_jobs: int | None = None,
        worker_id: str | None = None,
        failure_detector: FailureDetector | None = None,
        engine: str = "",
        report: Callable[[], str] = str,
    ) -> None:
        self._runner = runner
        self._report = report
        self._several_engines = False
        self._news = threading.Event()
        self._slots = JobSlots(start=starts, build=builds)
        self._one_at_a_time = max_jobs is not None
        self._reconciler = reconciler
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="job")
        self._connections = IdleConnections(KEPT_CONNECTIONS)
        self._jobs_lock = threading.Lock()
        self._claimed: dict[uuid.UUID, JobState] = {}
        self._submitted: Counter[uuid.UUID] = Counter()
        self._in_pool = 0
        self._orphans = Orphans(keep=reconciler.keep_ended)
        super().__init__(
            broker_url=broker_url,
            broker_timeout=broker_timeout,
            topology=BUILD_REQUESTED.topology(),
            # Each message in hand has a slot, or is the next to get one.
            prefetch=1 if self._one_at_a_time else starts + builds,
            capacity=builds,
            times=times,
            engine_id=runner.launcher.adapter.engine_id,
            engine=engine,
            tasks=[*self._own_tasks(times), *tasks],
            max_done=max_jobs,
            worker_id=worker_id,
            failure_detector=failure_detector,
        )

    def _own_tasks(self, times: WorkerTimes) -> list[PeriodicTask]:
        return [
            PeriodicTask(
                name="sweeper",
                every=times.sweep,
                woken=self._news,
                steps={
                    "place": self._look_at_engines,
                    "sweep": self._sweep_jobs,
                    "repair": job_sweeper.repair_attempts,
                    "sessions": self.end_sessions_of_dead_workers,
                },
            ),
            PeriodicTask(
                name="keeper",
                every=times.keep,
                first=times.sweep,
                steps={
                    "forget": Heartbeat.objects.forget,
                    "reconcile": self._reconcile,
                    "tidy": lambda: self._runner.tidy(self._reconciler.grace),
                },
            ),
        ]

    @property
    def leased(self) -> LeasedQuerySet[Any]:
        """Build jobs."""
        return BuildJob.objects.all()

    def fences(self) -> list[Fence]:
        """Return the leases of the jobs under way."""
        with self._jobs_lock:
            return [job.fence for job in self._claimed.values()]

    def busy_with(self) -> Collection[uuid.UUID]:
        """Return the jobs under way, and those that wait for a thread."""
        with self._jobs_lock:
            return {*self._claimed, *self._submitted}

    def lost(self, fence: Fence) -> None:
        """Stop a job whose lease was lost, unless it has just been finished."""
        with self._jobs_lock:
            job = self._claimed.get(fence.row_id)
        if job is not None and job.fence == fence:
            LEASE_RENEWALS.count(worker="build", outcome="lost")
            log.warning("lease_lost", job_id=str(fence.row_id))
            job.lose()

    def engine_every(self, times: WorkerTimes) -> timedelta:
        """Return how often it is written that the engine answers: lost is one that is silent."""
        return min(times.keep, times.stale / 2)

    def slots(self) -> Mapping[str, SlotUsage]:
        """Return the slots by lane."""
        return self._slots.usage()

    def is_idle(self) -> bool:
        """Whether no thread has a job."""
        with self._jobs_lock:
            return self._in_pool == 0

    def stop_now(self) -> None:
        """Kill the builds under way and give their jobs back."""
        with self._jobs_lock:
            for job in self._claimed.values():
                job.shut_down()

    def close(self) -> None:
        """Wait for the job threads."""
        self._pool.shutdown(wait=True)
        self._connections.close()

    # ------------------------------------------------------------ jobs

    def on_delivery(self, delivery: Delivery) -> None:
        """Hand the job that a message names to a thread."""
        try:
            job_id = BUILD_REQUESTED.from_bytes(delivery.body)
        except MalformedMessage as exc:
            log.error("message_malformed", reason=str(exc))
            delivery.reject()
            return
        self._submit(job_id, JobMessage(job_id, delivery))

    def _submit(self, job_id: uuid.UUID, message: JobMessage, job: JobState | None = None) -> None:
        """Have a thread work on a job; ``job``: it is claimed already, and has its slot."""
        with self._jobs_lock:
            self._in_pool += 1
            self._submitted[job_id] += 1
            if job is not None:
                self._claimed[job_id] = job
        self._pool.submit(self._work, job_id, message, job)

    def _work(self, job_id: uuid.UUID, message: JobMessage, job: JobState | None) -> None:
        """In a job thread: claim, run, settle the message. Nothing may escape."""
        close_old_connections()
        self._connections.adopt()
        with structlog.contextvars.bound_contextvars(job_id=str(job_id), worker_id=self.worker_id):
            settle: Callable[[Delivery], None] = Delivery.ack
            try:
                settle = self._claim_and_run(job_id, message, job)
            except (DatabaseError, InterfaceError) as exc:
                # The row is the truth: what could not be claimed is found again by a sweeper.
                log.warning("job_left_for_later", reason=type(exc).__name__)
                self.stopped.wait(1.0)
                settle = Delivery.requeue
            except Exception:
                log.exception("job_thread_failed")
            finally:
                message.settle(settle)
                self.guarded("build slots", self._claim_builds)
                with self._jobs_lock:
                    self._in_pool -= 1
                    self._submitted -= Counter([job_id])
                structlog.contextvars.unbind_contextvars("run_id")
                close_old_connections()

    def _claim_and_run(
        self, job_id: uuid.UUID, message: JobMessage, job: JobState | None
    ) -> Callable[[Delivery], None]:
        """Return how the message of the job is to be settled."""
        if job is None:
            self._place()
            slot = self._slots.acquire(BuildJob.Lane.START, stopped=self.draining.is_set)
            if slot is None:
                return Delivery.requeue
            try:
                job = JobState.claim(
                    job_id,
                    worker_id=self.worker_id,
                    lease=self.times.lease,
                    engine=self._engine,
                )
            finally:
                if job is None:
                    slot.release()
            if job is None:
                log.info("job_not_claimable")
                return Delivery.ack
            job.slot = slot
            with self._jobs_lock:
                self._claimed[job.id] = job
        job.on_started = partial(self._on_started, job, message)
        job.on_booted = self._connections.adopt
        try:
            return self._run(job)
        finally:
            with self._jobs_lock:
                # Another thread may have claimed it already, with the build slot that it needs.
                if self._claimed.get(job.id) is job:
                    del self._claimed[job.id]
            if job.slot is not None:
                job.slot.release()

    def _on_started(self, job: JobState, message: JobMessage) -> None:
        """The container has started: its boot needs no slot, no connection and no message."""
        assert job.slot is not None
        if self._one_at_a_time:
            return
        message.settle_early()
        if job.slot.release() is BuildJob.Lane.BUILD:
            self.guarded("build slots", self._claim_builds)
        self._connections.keep()
        connections.close_all()

    def _run(self, job: JobState) -> Callable[[Delivery], None]:
        """Run a claimed job; return how its message is to be settled."""
        started = time.monotonic()
        structlog.contextvars.bind_contextvars(run_id=str(job.attempt.run_id))
        log.info("job_claimed", attempt_count=job.row.attempt_count, status=job.row.status)
        done = True
        try:
            self._runner.run(job)
        except LeaseLost:
            log.warning("job_lost")
            job.drop()
            return Delivery.ack
        except ShutdownError:
            log.warning("job_given_back")
            return Delivery.requeue
        except BuildSlotNeeded:
            done = False
            log.info("job_waits_for_build_slot")
            return Delivery.ack
        except JobError as exc:
            log.warning("job_failed", code=exc.code, message=exc.message.partition("\n")[0])
            return Delivery.reject
        except Exception:
            log.exception("job_failed", code="internal-error")
            return Delivery.reject
        finally:
            if done:
                self.count_done()
        log.info("job_done", duration_ms=round((time.monotonic() - started) * 1000))
        return Delivery.ack

    # ------------------------------------------------------------ several engines

    def wake(self) -> None:
        """Know that jobs were placed, or that engines have changed."""
        self._news.set()

    def _remember_engine(self) -> None:
        self._engine_id = self._report() or self._ask_engine()

    def _place(self) -> None:
        """Place what waits for an engine, where there is a choice."""
        if self._engine and self._several_engines:
            place_waiting(stale=self.times.stale)

    def _look_at_engines(self) -> None:
        """Place what no worker's message brings up: an engine is lost, drained, or there again."""
        if self._engine:
            if Engine.objects.ends_workers(self._engine):
                self.leave("its engine is leaving")
                return
            self._several_engines = several_engines()
            self._place()

    # ------------------------------------------------------------ tasks

    def _sweep_jobs(self) -> None:
        if self.draining.is_set():
            return
        self._claim_builds()
        with self._jobs_lock:
            submitted = set(self._submitted)
            waiting = len(submitted - set(self._claimed))
            idle = self._in_pool == 0
        free = self._slots.free(BuildJob.Lane.START) - waiting
        if self._one_at_a_time:
            free = int(idle)
        if free <= 0:
            return
        found = job_sweeper.claimable_jobs(
            overdue=self.times.overdue,
            stale=self.times.stale,
            limit=free + len(submitted),
            expire=self.failure_detector.is_reliable(),
            engine=self._engine,
        )
        for job_id in [job_id for job_id in found if job_id not in submitted][:free]:
            log.info("job_found_by_sweeper", job_id=str(job_id))
            FOUND_BY_SWEEPER.count(worker="build")
            self._submit(job_id, JobMessage(job_id, None))

    def _claim_builds(self) -> None:
        """Give free build slots to the jobs that wait for one, here or in another worker."""
        if self._one_at_a_time and not self.is_idle():
            return
        ours = BuildJob.objects.of_engine(self._engine).waiting_for_build_slot()
        while not self.draining.is_set() and ours.exists():
            slot = self._slots.try_acquire(BuildJob.Lane.BUILD)
            if slot is None:
                return
            row = None
            try:
                row = BuildJob.objects.claim_build(
                    worker_id=self.worker_id, lease=self.times.lease, engine=self._engine
                )
            finally:
                if row is None:
                    slot.release()
            if row is None:
                return
            self._submit(row.pk, JobMessage(row.pk, None, acknowledged=True), JobState(row, slot))

    def _reconcile(self) -> None:
        result = reconcile(
            self._runner.launcher.adapter,
            instance_id=self._runner.launcher.instance_id,
            grace=self._reconciler.grace,
            keep_ended=self._reconciler.keep_ended,
            orphans=self._orphans,
            engine=self._engine,
        )
        if result.lost or result.ended or result.removed:
            log.info("reconciled", lost=result.lost, ended=result.ended, removed=result.removed)
