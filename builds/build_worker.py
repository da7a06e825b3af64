"""The build worker: claims build jobs from the queue, and looks after workspaces beside it.

``prefetch`` threads run the jobs. The sweeper looks for jobs that nobody works on, and asks nobody
but the database; the keeper reconciles containers with rows and removes leftovers, as slowly as the
engine may be. The loop itself is ``controlplane.work.worker``.

The first SIGTERM or SIGINT drains: no new job, those under way are finished. The second stops at
once: builds are killed and their jobs given back for another worker.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from builds import job_sweeper
from builds.pipeline.job_state import JobState, ShutdownError
from builds.pipeline.runner import JobRunner
from controlplane.errors import JobError
from controlplane.metrics.families import FOUND_BY_SWEEPER, LEASE_RENEWALS
from controlplane.work.amqp import Delivery, MalformedMessage
from controlplane.work.failure_detector import FailureDetector
from controlplane.work.leases import Fence, LeasedQuerySet, LeaseLost
from controlplane.work.models import Heartbeat
from controlplane.work.periodic import PeriodicTask
from controlplane.work.worker import Worker, WorkerTimes
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.lifecycle.reconciler import Orphans, reconcile
from workspaces.models import BuildJob

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerTimes:
    """How old leftovers are when they are removed, and how long ended containers are kept."""

    grace: timedelta
    keep_ended: timedelta


class BuildWorker(Worker):
    """One build worker process; ``max_jobs`` ends it after so many jobs."""

    kind = Heartbeat.Kind.BUILD

    def __init__(
        self,
        *,
        runner: JobRunner,
        broker_url: str,
        broker_timeout: float,
        prefetch: int,
        times: WorkerTimes,
        reconciler: ReconcilerTimes,
        tasks: Sequence[PeriodicTask] = (),
        max_jobs: int | None = None,
        worker_id: str | None = None,
        failure_detector: FailureDetector | None = None,
    ) -> None:
        self._runner = runner
        self._prefetch = prefetch
        self._reconciler = reconciler
        self._pool = ThreadPoolExecutor(prefetch, thread_name_prefix="job")
        self._jobs_lock = threading.Lock()
        self._claimed: dict[uuid.UUID, JobState] = {}
        self._submitted: Counter[uuid.UUID] = Counter()
        self._in_pool = 0
        self._orphans = Orphans(keep=reconciler.keep_ended)
        super().__init__(
            broker_url=broker_url,
            broker_timeout=broker_timeout,
            topology=BUILD_REQUESTED.topology(),
            prefetch=prefetch,
            capacity=prefetch,
            times=times,
            engine_id=runner.launcher.adapter.engine_id,
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
                steps={
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

    # ------------------------------------------------------------ jobs

    def on_delivery(self, delivery: Delivery) -> None:
        """Hand the job that a message names to a thread."""
        try:
            job_id = BUILD_REQUESTED.from_bytes(delivery.body)
        except MalformedMessage as exc:
            log.error("message_malformed", reason=str(exc))
            delivery.reject()
            return
        self._submit(job_id, delivery)

    def _submit(self, job_id: uuid.UUID, delivery: Delivery | None) -> None:
        with self._jobs_lock:
            self._in_pool += 1
            self._submitted[job_id] += 1
        self._pool.submit(self._work, job_id, delivery)

    def _work(self, job_id: uuid.UUID, delivery: Delivery | None) -> None:
        """In a job thread: claim, run, settle the message. Nothing may escape."""
        close_old_connections()
        with structlog.contextvars.bound_contextvars(job_id=str(job_id), worker_id=self.worker_id):
            settle: Callable[[Delivery], None] = Delivery.ack
            try:
                settle = self._claim_and_run(job_id)
            except (DatabaseError, InterfaceError) as exc:
                # The row is the truth: what could not be claimed is found again by a sweeper.
                log.warning("job_left_for_later", reason=type(exc).__name__)
                self.stopped.wait(1.0)
                settle = Delivery.requeue
            except Exception:
                log.exception("job_thread_failed")
            finally:
                if delivery is not None:
                    settle(delivery)
                with self._jobs_lock:
                    self._in_pool -= 1
                    self._submitted -= Counter([job_id])
                structlog.contextvars.unbind_contextvars("run_id")
                close_old_connections()

    def _claim_and_run(self, job_id: uuid.UUID) -> Callable[[Delivery], None]:
        """Return how the message of the job is to be settled."""
        if self.draining.is_set():
            return Delivery.requeue
        job = JobState.claim(job_id, worker_id=self.worker_id, lease=self.times.lease)
        if job is None:
            log.info("job_not_claimable")
            return Delivery.ack
        with self._jobs_lock:
            self._claimed[job.id] = job
        started = time.monotonic()
        structlog.contextvars.bind_contextvars(run_id=str(job.attempt.run_id))
        log.info("job_claimed", attempt_count=job.row.attempt_count, status=job.row.status)
        try:
            self._runner.run(job)
        except LeaseLost:
            log.warning("job_lost")
            job.drop()
            return Delivery.ack
        except ShutdownError:
            log.warning("job_given_back")
            return Delivery.requeue
        except JobError as exc:
            log.warning("job_failed", code=exc.code, message=exc.message.partition("\n")[0])
            return Delivery.reject
        except Exception:
            log.exception("job_failed", code="internal-error")
            return Delivery.reject
        finally:
            with self._jobs_lock:
                self._claimed.pop(job.id, None)
            self.count_done()
        log.info("job_done", duration_ms=round((time.monotonic() - started) * 1000))
        return Delivery.ack

    # ------------------------------------------------------------ tasks

    def _sweep_jobs(self) -> None:
        if self.draining.is_set():
            return
        with self._jobs_lock:
            free = self._prefetch - self._in_pool
            submitted = set(self._submitted)
        if free <= 0:
            return
        found = job_sweeper.claimable_jobs(
            overdue=self.times.overdue,
            stale=self.times.stale,
            limit=free + len(submitted),
            expire=self.failure_detector.is_reliable(),
        )
        for job_id in [job_id for job_id in found if job_id not in submitted][:free]:
            log.info("job_found_by_sweeper", job_id=str(job_id))
            FOUND_BY_SWEEPER.count(worker="build")
            self._submit(job_id, None)

    def _reconcile(self) -> None:
        result = reconcile(
            self._runner.launcher.adapter,
            instance_id=self._runner.launcher.instance_id,
            grace=self._reconciler.grace,
            keep_ended=self._reconciler.keep_ended,
            orphans=self._orphans,
        )
        if result.lost or result.ended or result.removed:
            log.info("reconciled", lost=result.lost, ended=result.ended, removed=result.removed)
