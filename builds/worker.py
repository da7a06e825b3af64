"""The build worker: a consumer of the build queue, with leases, heartbeat and sweeper.

Five kinds of threads, each with one duty:

* the main thread owns the broker's connection and only pumps it;
* ``prefetch`` job threads run the jobs;
* the pulse writes the heartbeat and renews the leases, so neither waits for anything else;
* the sweeper looks for jobs that nobody is at, and asks nobody but the database;
* the keeper reconciles containers with rows and removes leftovers, as slowly as the engine may be.

What else is done again and again (``builds.duties``) has a thread each.

The first SIGTERM or SIGINT drains: no new job, those at work are finished. The second stops at
once: builds are killed and their jobs given back for another worker.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from builds import sweeper
from builds.duties import Duty, guarded
from builds.messages import BuildRequested, MalformedMessageError, topology
from builds.models import BuildJob, LeaseLostError, Worker
from builds.outcomes import counted
from builds.own_pulse import OwnPulse
from builds.pipeline import JobControl, JobRunner, ShutdownError
from builds.reconciler import Orphans, reconcile
from builds.settlement import fail_claimed_job
from controlplane import sessions
from controlplane.amqp import Consumer, Delivery
from controlplane.errors import JobError
from controlplane.metrics.families import FOUND_BY_SWEEPER, LEASE_RENEWALS
from controlplane.metrics.services import try_flush
from controlplane.patience import database_trouble

log = structlog.get_logger(__name__)

ATTEMPTS_EXHAUSTED = "attempts-exhausted"


def new_worker_id() -> str:
    """Return an id that no worker has had."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How often a worker does what, and when it takes others for dead."""

    lease: timedelta
    heartbeat: timedelta
    stale: timedelta
    sweep: timedelta
    overdue: timedelta
    reconcile: timedelta
    reconcile_grace: timedelta
    keep_ended: timedelta


class BuildWorker:
    """One worker process. :meth:`run` returns when it was told to stop or ``max_jobs`` are done."""

    def __init__(
        self,
        *,
        runner: JobRunner,
        broker_url: str,
        broker_timeout: float,
        prefetch: int,
        times: WorkerTimes,
        duties: Sequence[Duty] = (),
        max_jobs: int | None = None,
        worker_id: str | None = None,
        pulse: OwnPulse | None = None,
    ) -> None:
        self.worker_id = worker_id or new_worker_id()
        self._runner = runner
        self._prefetch = prefetch
        self._times = times
        self._duties = duties
        self._max_jobs = max_jobs
        self._consumer = Consumer(
            broker_url,
            topology(),
            prefetch=prefetch,
            timeout=broker_timeout,
            name=f"buildworker {self.worker_id}",
            on_delivery=self._on_delivery,
            on_tick=self._on_tick,
        )
        self._pool = ThreadPoolExecutor(prefetch, thread_name_prefix="job")
        self._lock = threading.Lock()
        self._controls: dict[uuid.UUID, tuple[BuildJob, JobControl]] = {}
        self._submitted: Counter[uuid.UUID] = Counter()
        self._in_pool = 0
        self._done = 0
        self._signals = 0
        self._draining = threading.Event()
        self._stopped = threading.Event()
        self._own_pulse = pulse or OwnPulse(times.heartbeat)
        self._orphans = Orphans(keep=times.keep_ended)
        self._engine_id = ""

    # ------------------------------------------------------------ life

    def run(self) -> None:
        """Work until told to stop; the caller's signal handlers are put back afterwards."""
        log.info("worker_started", worker_id=self.worker_id, prefetch=self._prefetch)
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        threads = [
            threading.Thread(target=self._pulse, name="pulse"),
            threading.Thread(target=self._sweep, name="sweeper"),
            threading.Thread(target=self._keep, name="keeper"),
            *(
                threading.Thread(target=duty.repeat, args=[self._stopped], name=duty.name)
                for duty in self._duties
            ),
        ]
        connection_created.connect(self._on_connection)
        self._beat()
        for thread in threads:
            thread.start()
        try:
            self._consumer.run()
        finally:
            # Nothing is left to do, unless the consumer failed in a way that nobody foresaw.
            self._draining.set()
            self._stop_at_once()
            self._pool.shutdown(wait=True)
            self._stopped.set()
            for thread in threads:
                thread.join()
            self._unregister()
            for number, handler in before.items():
                signal.signal(number, handler)
            connections.close_all()
            connection_created.disconnect(self._on_connection)
            log.info("worker_stopped", worker_id=self.worker_id, jobs=self._done)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only counts: a handler may interrupt anything, even the logger.
        self._signals += 1

    def _on_connection(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        # So that others can close what is left of us when we stand still.
        sessions.name_session(connection, self.worker_id)

    def _on_tick(self) -> None:
        """On the main thread, about twice a second: act on signals, and end when drained."""
        if self._signals and not self._draining.is_set():
            self._drain("a signal asked for it")
        if self._signals > 1:
            self._stop_at_once()
        with self._lock:
            idle = self._in_pool == 0
        if self._draining.is_set() and idle:
            self._consumer.stop()

    def _stop_at_once(self) -> None:
        """Kill the builds at work and give their jobs back."""
        with self._lock:
            for _, control in self._controls.values():
                control.shut_down()

    def _drain(self, reason: str) -> None:
        self._draining.set()
        self._consumer.pause()
        log.info("worker_draining", reason=reason)

    # ------------------------------------------------------------ jobs

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            job_id = BuildRequested.from_bytes(delivery.body).job_id
        except MalformedMessageError as exc:
            log.error("message_malformed", reason=str(exc))
            delivery.reject()
            return
        self._submit(job_id, delivery)

    def _submit(self, job_id: uuid.UUID, delivery: Delivery | None) -> None:
        with self._lock:
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
                self._stopped.wait(1.0)
                settle = Delivery.requeue
            except Exception:
                log.exception("job_thread_failed")
            finally:
                if delivery is not None:
                    settle(delivery)
                with self._lock:
                    self._in_pool -= 1
                    self._submitted -= Counter([job_id])
                structlog.contextvars.unbind_contextvars("run_id")
                close_old_connections()

    def _claim_and_run(self, job_id: uuid.UUID) -> Callable[[Delivery], None]:
        """Return how the message of the job is to be settled."""
        if self._draining.is_set():
            return Delivery.requeue
        job = BuildJob.objects.claim(job_id, worker_id=self.worker_id, lease=self._times.lease)
        if job is None:
            log.info("job_not_claimable")
            return Delivery.ack
        control = JobControl()
        with self._lock:
            self._controls[job.pk] = (job, control)
        started = time.monotonic()
        structlog.contextvars.bind_contextvars(run_id=str(job.attempt.run_id))
        log.info("job_claimed", attempt_count=job.attempt_count, status=job.status)
        try:
            self._run_claimed(job, control)
        except LeaseLostError:
            log.warning("job_lost")
            self._let_go(job)
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
            with self._lock:
                self._controls.pop(job.pk, None)
            self._count_done()
        log.info("job_done", duration_ms=round((time.monotonic() - started) * 1000))
        return Delivery.ack

    def _let_go(self, job: BuildJob) -> None:
        """Tell, of a job that was cancelled, that nothing more will come of it."""
        try:
            BuildJob.objects.let_go(job.fence)
        except (DatabaseError, InterfaceError) as exc:
            # Whoever waits for it does not wait for ever.
            log.warning("job_not_let_go", reason=type(exc).__name__)
            close_old_connections()

    @counted()
    def _run_claimed(self, job: BuildJob, control: JobControl) -> None:
        if job.attempt_count > job.max_attempts:
            exhausted = JobError(
                ATTEMPTS_EXHAUSTED,
                f"{job.max_attempts} workers took this job and none of them finished it.",
            )
            fail_claimed_job(job.fence, job.attempt, exhausted, patience=0)
            raise exhausted
        self._runner.run(job, control)

    def _count_done(self) -> None:
        with self._lock:
            self._done += 1
            enough = self._max_jobs is not None and self._done >= self._max_jobs
        if enough and not self._draining.is_set():
            self._drain("max-jobs reached")

    # ------------------------------------------------------------ pulse

    def _beat(self) -> None:
        try:
            Worker.objects.beat(
                self.worker_id,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                prefetch=self._prefetch,
                draining=self._draining.is_set(),
                engine_id=self._engine_id,
            )
        except (DatabaseError, InterfaceError) as exc:
            log.warning("heartbeat_failed", reason=database_trouble(exc))
            close_old_connections()
            return
        self._own_pulse.beaten()

    def _pulse(self) -> None:
        while not self._stopped.wait(self._times.heartbeat.total_seconds()):
            close_old_connections()
            self._beat()
            with self._lock:
                held = list(self._controls.values())
            for job, control in held:
                self._renew(job, control)
            self._release_strays()
            try_flush()
        connections.close_all()

    def _renew(self, job: BuildJob, control: JobControl) -> None:
        try:
            if BuildJob.objects.renew(job.fence, lease=self._times.lease):
                LEASE_RENEWALS.count(worker="build", outcome="renewed")
            else:
                with self._lock:
                    still_held = job.pk in self._controls
                if still_held:
                    LEASE_RENEWALS.count(worker="build", outcome="lost")
                    log.warning("lease_lost", job_id=str(job.pk))
                    control.lose()
        except (DatabaseError, InterfaceError) as exc:
            LEASE_RENEWALS.count(worker="build", outcome="failed")
            log.warning("renewal_failed", job_id=str(job.pk), reason=type(exc).__name__)
            close_old_connections()

    def _release_strays(self) -> None:
        """Give back jobs that the table calls ours and no thread is at.

        A claim may be committed although its answer was lost with the connection.
        """
        with self._lock:
            ours = {*self._controls, *self._submitted}
        try:
            released = BuildJob.objects.release_strays(
                self.worker_id, ours, older_than=self._times.heartbeat
            )
        except (DatabaseError, InterfaceError):
            close_old_connections()
            return
        if released:
            log.warning("stray_leases_released", jobs=released)

    def _unregister(self) -> None:
        try_flush()
        try:
            Worker.objects.filter(pk=self.worker_id).delete()
        except (DatabaseError, InterfaceError):
            log.warning("heartbeat_row_left")

    # ------------------------------------------------------------ sweeper

    def _sweep(self) -> None:
        while not self._stopped.wait(self._times.sweep.total_seconds()):
            close_old_connections()
            guarded("sweep", self._sweep_jobs)
            guarded("repair", lambda: sweeper.repair_attempts())
            guarded("sessions", self._end_sessions)
        connections.close_all()

    def _keep(self) -> None:
        pause = self._times.sweep
        guarded("engine", self._ask_engine)
        while not self._stopped.wait(pause.total_seconds()):
            close_old_connections()
            guarded("engine", self._ask_engine)
            guarded("forget", lambda: sweeper.forget_workers())
            guarded("reconcile", self._reconcile)
            guarded("tidy", lambda: self._runner.tidy(self._times.reconcile_grace))
            pause = self._times.reconcile
        connections.close_all()

    def _sweep_jobs(self) -> None:
        if self._draining.is_set():
            return
        with self._lock:
            free = self._prefetch - self._in_pool
            submitted = set(self._submitted)
        if free <= 0:
            return
        found = sweeper.claimable_jobs(
            overdue=self._times.overdue,
            stale=self._times.stale,
            limit=free + len(submitted),
            expire=self._own_pulse.may_judge(),
        )
        for job_id in [job_id for job_id in found if job_id not in submitted][:free]:
            log.info("job_found_by_sweeper", job_id=str(job_id))
            FOUND_BY_SWEEPER.count(worker="build")
            self._submit(job_id, None)

    def _ask_engine(self) -> None:
        """Remember which engine this is, for the heartbeat: it may be another one by now."""
        self._engine_id = self._runner.adapter.engine_id()

    def _end_sessions(self) -> None:
        if self._own_pulse.may_judge():
            sessions.end_sessions_of_dead_workers(Worker, stale=self._times.stale)

    def _reconcile(self) -> None:
        result = reconcile(
            self._runner.adapter,
            instance_id=self._runner.instance_id,
            grace=self._times.reconcile_grace,
            keep_ended=self._times.keep_ended,
            orphans=self._orphans,
        )
        if result.lost or result.ended or result.removed:
            log.info("reconciled", lost=result.lost, ended=result.ended, removed=result.removed)
