"""The run worker: executes one-shot runs and records every run, with leases, heartbeat and sweeper.

Six kinds of threads, each with one duty:

* the main thread owns the broker's connection and only pumps it;
* a few claim threads claim what messages name; the message is settled once the claim is written;
* one recorder thread for each run that is held;
* the pulse writes the heartbeat, renews all leases, and looks whose end is asked for;
* the sweeper looks for runs that nobody is at, and asks nobody but the database;
* the keeper has workspaces remove what was committed while nobody could tell them.

The first SIGTERM or SIGINT gives all runs to other workers, between two batches; the second does
not even wait for that. Nothing in a workspace notices either.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from controlplane import sessions
from controlplane.amqp import Consumer, Delivery
from controlplane.metrics.duties import guarded
from controlplane.metrics.families import FOUND_BY_SWEEPER, LEASE_RENEWALS
from controlplane.metrics.services import try_flush
from controlplane.patience import database_trouble
from runs import claims, heartbeats, sweeper
from runs.claims import LeaseLostError
from runs.connections import Connections, StoppedError
from runs.execution import RecordLimits
from runs.messages import MalformedMessageError, RunRequested, topology
from runs.models import Run, RunWorker
from runs.places import RUNS, SESSIONS, Held, Places
from runs.recorder import Recorder, RunControl
from runs.services import end_sessions_not_begun
from workspaces.runtimes.base import RuntimeAdapter

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""How often a worker asks whose end was asked for."""
CLAIM_THREADS = 4
ANNOUNCED_FOR = timedelta(seconds=60)
"""A session that has not begun for so long will not any more: a gateway has begun it, or has given
up, within its login grace of 30 s."""
DATABASE_CONNECTIONS = 32
"""So many recorders may be connected to the database at once, of the 100 that it takes by itself
and that two workers, their other threads and the API share."""


def _boot_time() -> float:
    """Return seconds since boot; unlike the monotonic clock they go on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How often a worker does what, and when it takes others for dead."""

    lease: timedelta
    heartbeat: timedelta
    stale: timedelta
    sweep: timedelta
    overdue: timedelta
    keep: timedelta


class Worker:
    """One worker process. :meth:`run` returns when it was told to stop or ``max_runs`` are done."""

    def __init__(
        self,
        *,
        adapter: RuntimeAdapter,
        limits: RecordLimits,
        broker_url: str,
        broker_timeout: float,
        capacity: int,
        sessions: int,
        times: WorkerTimes,
        max_runs: int | None = None,
    ) -> None:
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._adapter = adapter
        self._limits = limits
        self._capacity = capacity
        self._times = times
        self._max_runs = max_runs
        self._consumer = Consumer(
            broker_url,
            topology(),
            prefetch=CLAIM_THREADS,
            timeout=broker_timeout,
            name=f"runworker {self.worker_id}",
            on_delivery=self._on_delivery,
            on_tick=self._on_tick,
        )
        self._claimers = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="claim")
        self._places = Places({RUNS: capacity, SESSIONS: sessions})
        self._connections = Connections(DATABASE_CONNECTIONS)
        self._lock = threading.Lock()
        self._done = 0
        self._engine_id = ""
        self._signals = 0
        self._draining = threading.Event()
        self._stopped = threading.Event()
        # Whoever lives beats within two intervals; before that nobody is taken for dead.
        self._hold = 2 * times.heartbeat.total_seconds()
        self._hold_until = _boot_time() + self._hold
        self._beaten_at = _boot_time()

    # ------------------------------------------------------------ life

    def run(self) -> None:
        """Work until told to stop; the caller's signal handlers are put back afterwards."""
        log.info("worker_started", worker_id=self.worker_id, capacity=self._capacity)
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        threads = [
            threading.Thread(target=self._pulse, name="pulse"),
            threading.Thread(target=self._sweep, name="sweeper"),
            threading.Thread(target=self._keep, name="keeper", daemon=True),
        ]
        connection_created.connect(self._on_connection)
        self._beat()
        for thread in threads:
            thread.start()
        try:
            self._consumer.run()
        finally:
            self._draining.set()
            self._stop_recorders()
            self._claimers.shutdown(wait=True)
            self._stopped.set()
            for thread in threads[:2]:
                thread.join()
            self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)
            connections.close_all()
            connection_created.disconnect(self._on_connection)
            log.info("worker_stopped", worker_id=self.worker_id, runs=self._done)

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
        if self._draining.is_set():
            self._stop_recorders()
            if not self._places.all() or self._signals > 1:
                self._consumer.stop()

    def _drain(self, reason: str) -> None:
        self._draining.set()
        self._consumer.pause()
        log.info("worker_draining", reason=reason)

    def _stop_recorders(self) -> None:
        for held in self._places.holding():
            held.control.stopped.set()

    def _leave(self) -> None:
        """Give back what recorders still hold, and the heartbeat's row."""
        try_flush()
        try:
            claims.release(self.worker_id, [held.fence for held in self._places.holding()])
            heartbeats.unregister(self.worker_id)
        except (DatabaseError, InterfaceError):
            log.warning("heartbeat_row_left")

    # ------------------------------------------------------------ claims

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            run_id = RunRequested.from_bytes(delivery.body).run_id
        except MalformedMessageError as exc:
            log.error("message_malformed", reason=str(exc))
            delivery.reject()
            return
        self._claimers.submit(self._claim_delivered, run_id, delivery)

    def _claim_delivered(self, run_id: uuid.UUID, delivery: Delivery) -> None:
        """In a claim thread. Nothing may escape."""
        close_old_connections()
        settle: Callable[[Delivery], None] = Delivery.ack
        try:
            if self._draining.is_set():
                settle = Delivery.requeue
            else:
                # Without a free place the message is done with too: a sweeper finds the row.
                mode = claims.mode_of(run_id)
                if mode is None:
                    log.info("run_not_claimable", run_id=str(run_id))
                else:
                    self._claim(run_id, mode)
        except (DatabaseError, InterfaceError) as exc:
            log.warning("run_left_for_later", run_id=str(run_id), reason=type(exc).__name__)
            self._stopped.wait(1.0)
            settle = Delivery.requeue
        except Exception:
            log.exception("claim_failed", run_id=str(run_id))
        finally:
            settle(delivery)
            connections.close_all()

    def _claim(self, run_id: uuid.UUID, mode: Run.Mode) -> None:
        """Claim the run if there is a place for it, and start its recorder."""
        if not self._places.take(run_id, mode):
            log.info("no_place_taken", run_id=str(run_id), mode=mode)
            return
        held = None
        try:
            run = claims.claim(run_id, worker_id=self.worker_id, lease=self._times.lease)
            if run is None:
                log.info("run_not_claimable", run_id=str(run_id))
                return
            log.info("run_claimed", run_id=str(run_id), mode=run.mode, claim_count=run.claim_count)
            held = Held(claims.fence_of(run), RunControl())
            if run.cancel_requested_at is not None:
                held.control.cancelled.set()
            self._places.hold(run_id, held)
            # A daemon: the second signal does not wait for it.
            thread = threading.Thread(
                target=self._record, args=(run, held), name=f"run {run_id}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # No thread to be had: held by us without a recorder, it would be nobody's.
                self._places.leave(run_id)
                self._give_back(held)
                raise
        finally:
            if held is None:
                self._places.leave(run_id)

    # ------------------------------------------------------------ recorders

    def _record(self, run: Run, held: Held) -> None:
        """On the run's own thread: record it to its end, or give it back. Nothing may escape."""
        with structlog.contextvars.bound_contextvars(
            run_id=str(run.pk), worker_id=self.worker_id, claim_count=run.claim_count
        ):
            try:
                Recorder(
                    run,
                    held.control,
                    adapter=self._adapter,
                    limits=self._limits,
                    connections=self._connections,
                ).record()
                log.info("run_recorded")
            except LeaseLostError:
                LEASE_RENEWALS.count(worker="run", outcome="lost")
                log.warning("run_lost")
            except StoppedError:
                self._give_back(held)
            except Exception:
                # The lease runs out by itself: whoever is next does not come at once.
                log.exception("recorder_failed")
            finally:
                connections.close_all()
                self._places.leave(run.pk)
                with self._lock:
                    self._done += 1
                    enough = self._max_runs is not None and self._done >= self._max_runs
                if enough and not self._draining.is_set():
                    self._drain("max-runs reached")

    def _give_back(self, held: Held) -> None:
        try:
            claims.release(self.worker_id, [held.fence])
            log.info("run_given_back")
        except (DatabaseError, InterfaceError) as exc:
            log.warning("run_not_given_back", reason=type(exc).__name__)

    # ------------------------------------------------------------ pulse

    def _pulse(self) -> None:
        """Look often whose end is asked for; beat and renew at the heartbeat's own pace."""
        beat = self._times.heartbeat.total_seconds()
        while not self._stopped.wait(min(beat, LOOK_SECONDS)):
            close_old_connections()
            if _boot_time() - self._beaten_at >= beat:
                self._beat()
                self._guarded("renewal", self._renew)
                try_flush()
            self._guarded("look", self._look)
        connections.close_all()

    def _beat(self) -> None:
        try:
            heartbeats.beat(
                self.worker_id,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                capacity=self._capacity,
                engine_id=self._engine_id,
                draining=self._draining.is_set(),
            )
        except (DatabaseError, InterfaceError) as exc:
            log.warning("heartbeat_failed", reason=database_trouble(exc))
            close_old_connections()
            return
        now = _boot_time()
        if now - self._beaten_at > self._hold:
            # The database was away, or this machine was: then every heartbeat may be old.
            self._hold_until = now + self._hold
        self._beaten_at = now

    def _may_judge(self) -> bool:
        """Whether an old heartbeat means a dead worker: ours is fresh, and not since just now."""
        now = _boot_time()
        return now - self._beaten_at <= self._hold and now >= self._hold_until

    def _renew(self) -> None:
        fences = [held.fence for held in self._places.holding()]
        try:
            renewed = claims.renew(self.worker_id, fences, lease=self._times.lease)
        except DatabaseError:
            LEASE_RENEWALS.count(len(fences), worker="run", outcome="failed")
            raise
        LEASE_RENEWALS.count(renewed, worker="run", outcome="renewed")
        ours = self._places.all()
        released = claims.release_strays(self.worker_id, ours, older_than=self._times.heartbeat)
        if released:
            log.warning("stray_leases_released", runs=released)

    def _look(self) -> None:
        holding = self._places.holding()
        standing = claims.standing(self.worker_id, [held.fence for held in holding])
        for held in holding:
            asked = standing.get(held.fence.run_id)
            if asked is None:
                # Another worker has it, or its record has just ended.
                held.control.stopped.set()
            elif asked:
                held.control.cancelled.set()

    # ------------------------------------------------------------ sweeper and keeper

    def _sweep(self) -> None:
        while True:
            close_old_connections()
            self._guarded("sweep", self._sweep_runs)
            self._guarded("sessions", self._end_sessions)
            self._guarded("announced", lambda: end_sessions_not_begun(older_than=ANNOUNCED_FOR))
            if self._stopped.wait(self._times.sweep.total_seconds()):
                break
        connections.close_all()

    def _keep(self) -> None:
        self._guarded("engine", self._ask_engine)
        while not self._stopped.wait(self._times.keep.total_seconds()):
            close_old_connections()
            self._guarded("engine", self._ask_engine)
            self._guarded("forget", heartbeats.forget_workers)
            self._guarded("leftovers", lambda: sweeper.acknowledge_leftovers(self._adapter))
            connections.close_all()

    def _ask_engine(self) -> None:
        """Remember which engine this is, for the heartbeat: it may be another one by now."""
        self._engine_id = self._adapter.engine_id()

    def _guarded(self, name: str, duty: Callable[[], object]) -> None:
        """Run one duty; the next round tries again whatever went wrong."""
        guarded(name, duty, worker="run")

    def _sweep_runs(self) -> None:
        if self._draining.is_set():
            return
        if self._may_judge():
            heartbeats.expire_leases_of_dead_workers(stale=self._times.stale)
        for kind in self._places.kinds:
            ours, free = self._places.of(kind)
            found = sweeper.claimable_runs(
                overdue=self._times.overdue, modes=kind, limit=max(free, 0) + len(ours) + 1
            )
            waiting = [(run_id, mode) for run_id, mode in found if run_id not in ours]
            for run_id, mode in waiting[:free]:
                log.info("run_found_by_sweeper", run_id=str(run_id))
                FOUND_BY_SWEEPER.count(worker="run")
                self._claim(run_id, mode)
            if len(waiting) > free:
                log.warning("runs_wait_for_a_place", modes=sorted(kind), capacity=len(ours) + free)

    def _end_sessions(self) -> None:
        if self._may_judge():
            sessions.end_sessions_of_dead_workers(RunWorker, stale=self._times.stale)
