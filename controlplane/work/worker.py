"""The loop of a worker process: one queue, a heartbeat, leases that are renewed, periodic tasks.

Threads, each with one task:

* the main thread owns the broker's connection and only pumps it;
* ``heartbeat`` writes the heartbeat and renews the leases, so neither waits for anything else;
* each periodic task (``controlplane.work.periodic``) has its own.

The first SIGTERM or SIGINT drains: nothing new is taken. The second stops at once. What a worker
does with its rows is a subclass's; see ``builds.build_worker`` and ``runs.recording.run_worker``.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from controlplane.database.connections import end_sessions_of_dead_workers, name_session
from controlplane.database.retries import database_trouble
from controlplane.folders import sweep_scratch
from controlplane.metrics.families import LEASE_RENEWALS
from controlplane.metrics.services import try_flush
from controlplane.work.amqp import Consumer, Delivery, Topology
from controlplane.work.failure_detector import FailureDetector
from controlplane.work.leases import Fence, LeasedQuerySet
from controlplane.work.models import Heartbeat, SlotUsage
from controlplane.work.periodic import PeriodicTask, guarded
from controlplane.work.stopping import StopEvent

ALIVE_EVERY_SECONDS = 5.0
"""How often ``WORKER_ALIVE_FILE`` is touched, at most."""

log = structlog.get_logger(__name__)


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
    keep: timedelta
    """How often the engine is looked at."""


class Worker(ABC):
    """One worker process. :meth:`run` returns when it was told to stop or ``max_done`` are done.

    ``engine`` is the name of the engine whose rows alone it claims; without one it claims all.

    A subclass gives ``kind`` and ``leased`` (the rows that it leases) and defines
    :meth:`on_delivery`, :meth:`fences`, :meth:`busy_with`, :meth:`lost` and :meth:`is_idle`.
    """

    kind: Heartbeat.Kind

    def __init__(
        self,
        *,
        broker_url: str,
        broker_timeout: float,
        topology: Topology,
        prefetch: int,
        capacity: int,
        times: WorkerTimes,
        engine_id: Callable[[], str],
        engine: str = "",
        tasks: Sequence[PeriodicTask] = (),
        max_done: int | None = None,
        worker_id: str | None = None,
        failure_detector: FailureDetector | None = None,
    ) -> None:
        self.worker_id = worker_id or new_worker_id()
        self.times = times
        self.draining = threading.Event()
        self.stopped = StopEvent()
        self.failure_detector = failure_detector or FailureDetector(times.heartbeat)
        self._capacity = capacity
        self._engine = engine
        # A task of its own: an engine that hangs must not keep anything else waiting.
        look = PeriodicTask(
            name="engine",
            every=self.engine_every(times),
            first=timedelta(),
            steps={"engine": self._remember_engine},
        )
        self._tasks = [look, *tasks]
        self._max_done = max_done
        self._ask_engine = engine_id
        self._engine_id = ""
        self._lock = threading.Lock()
        self._done = 0
        self._signals = 0
        self._shown_at = -ALIVE_EVERY_SECONDS
        self._consumer = Consumer(
            broker_url,
            topology,
            prefetch=prefetch,
            timeout=broker_timeout,
            name=f"{self.kind}worker {self.worker_id}",
            on_delivery=self.on_delivery,
            on_tick=self._on_tick,
        )

    # ------------------------------------------------------------ what a subclass defines

    @property
    @abstractmethod
    def leased(self) -> LeasedQuerySet[Any]:
        """The rows that this kind of worker leases."""

    @abstractmethod
    def on_delivery(self, delivery: Delivery) -> None:
        """Take a message, on the main thread: hand it to a pool and return at once."""

    @abstractmethod
    def fences(self) -> list[Fence]:
        """Return the leases that this worker holds."""

    @abstractmethod
    def busy_with(self) -> Collection[uuid.UUID]:
        """Return the rows that some thread works on or is about to."""

    @abstractmethod
    def lost(self, fence: Fence) -> None:
        """Stop the work on a row whose lease was lost."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing is left to do for a worker that drains."""

    def engine_every(self, times: WorkerTimes) -> timedelta:
        """Return how often the engine is asked which one it is."""
        return times.keep

    def slots(self) -> Mapping[str, SlotUsage]:
        """Return how many slots of each kind there are and are in use, for the heartbeat."""
        return {}

    def on_drain(self) -> None:  # noqa: B027 (some have nothing to do)
        """Called about twice a second while the worker drains."""

    def stop_now(self) -> None:  # noqa: B027 (some have nothing to do)
        """Stop what is under way, on the second signal."""

    def close(self) -> None:  # noqa: B027 (some have nothing to do)
        """Wait for the pools, when nothing new comes any more."""

    # ------------------------------------------------------------ life

    def run(self) -> None:
        """Work until told to stop; the caller's signal handlers are put back afterwards."""
        log.info("worker_started", worker_id=self.worker_id, capacity=self._capacity)
        if folders := sweep_scratch():
            log.warning("scratch_folders_removed", folders=folders)
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        connection_created.connect(self._on_connection)
        threads = [
            threading.Thread(target=self._keep_alive, name="heartbeat"),
            *(
                threading.Thread(
                    target=task.repeat,
                    args=[self.stopped],
                    kwargs={"worker": self.kind.value},
                    name=task.name,
                )
                for task in self._tasks
            ),
        ]
        self._beat()
        for thread in threads:
            thread.start()
        try:
            self._consumer.run()
        finally:
            # Nothing is left to do, unless the consumer failed in a way that nobody foresaw.
            self.draining.set()
            self.stop_now()
            self.close()
            self.stopped.set()
            for task in self._tasks:
                task.interrupt()
            for thread in threads:
                thread.join()
            self._unregister()
            for number, handler in before.items():
                signal.signal(number, handler)
            connections.close_all()
            connection_created.disconnect(self._on_connection)
            log.info("worker_stopped", worker_id=self.worker_id, done=self._done)

    def drain(self, reason: str) -> None:
        """Take nothing new, finish what is under way, and return from :meth:`run`."""
        self.draining.set()
        self._consumer.pause()
        log.info("worker_draining", reason=reason)

    def leave(self, reason: str) -> None:
        """End at once, as after the second signal; from any thread."""
        if self._signals < 2:
            log.info("worker_leaving", reason=reason)
            self._signals = 2

    def expect_engine(self, engine_id: str) -> None:
        """Say in the heartbeat which engine it is, until that has answered itself."""
        self._engine_id = engine_id

    def count_done(self) -> None:
        """Count one finished row; the last one of ``max_done`` drains the worker."""
        with self._lock:
            self._done += 1
            enough = self._max_done is not None and self._done >= self._max_done
        if enough and not self.draining.is_set():
            self.drain("the maximum is reached")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only counts: a handler may interrupt anything, even the logger.
        self._signals += 1

    def _on_connection(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        # So that others can close what is left of us when this process hangs.
        name_session(connection, self.worker_id)

    def _on_tick(self) -> None:
        """On the main thread, about twice a second: act on signals, and end when drained."""
        self._show_that_alive()
        if self._signals and not self.draining.is_set():
            self.drain("a signal asked for it")
        if self.draining.is_set():
            self.on_drain()
        if self._signals > 1:
            self.stop_now()
        if self.draining.is_set() and self.is_idle():
            self._consumer.stop()

    def _show_that_alive(self) -> None:
        """Touch the file that probes look at, which needs neither database nor broker."""
        now = time.monotonic()
        if settings.WORKER_ALIVE_FILE and now - self._shown_at >= ALIVE_EVERY_SECONDS:
            self._shown_at = now
            try:
                Path(settings.WORKER_ALIVE_FILE).touch()
            except OSError as exc:
                log.warning("alive_file_not_written", reason=str(exc))

    def stop_consuming(self) -> None:
        """Return from :meth:`run` soon, whatever is under way."""
        self._consumer.stop()

    # ------------------------------------------------------------ heartbeat and leases

    def _keep_alive(self) -> None:
        while not self.stopped.wait(self.times.heartbeat.total_seconds()):
            close_old_connections()
            self._beat()
            self.guarded("renewal", self._renew)
            self.guarded("strays", self._release_strays)
            try_flush()
        connections.close_all()

    def _beat(self) -> None:
        try:
            Heartbeat.objects.beat(
                self.worker_id,
                kind=self.kind,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                capacity=self._capacity,
                draining=self.draining.is_set(),
                engine_id=self._engine_id,
                engine_name=self._engine,
                slots=self.slots(),
            )
        except (DatabaseError, InterfaceError) as exc:
            log.warning("heartbeat_failed", reason=database_trouble(exc))
            close_old_connections()
            return
        self.failure_detector.heartbeat_written()

    def _renew(self) -> None:
        fences = self.fences()
        if not fences:
            return
        worker = self.kind.value
        try:
            renewed = self.leased.renew_all(fences, lease=self.times.lease)
            rows = self.leased.held_by_any(fences).filter(lease_expires_at__isnull=False)
            held = set(rows.values_list("pk", flat=True))
        except (DatabaseError, InterfaceError):
            LEASE_RENEWALS.count(len(fences), worker=worker, outcome="failed")
            raise
        LEASE_RENEWALS.count(renewed, worker=worker, outcome="renewed")
        for fence in fences:
            if fence.row_id not in held:
                self.lost(fence)

    def _release_strays(self) -> None:
        released = self.leased.release_strays(
            self.worker_id, self.busy_with(), older_than=self.times.heartbeat
        )
        if released:
            log.warning("stray_leases_released", rows=released)

    def _unregister(self) -> None:
        try_flush()
        try:
            self.leased.release(self.fences())
            Heartbeat.objects.filter(pk=self.worker_id).delete()
        except (DatabaseError, InterfaceError):
            log.warning("heartbeat_row_left")

    # ------------------------------------------------------------ for the tasks of a subclass

    def guarded(self, name: str, task: Callable[[], object]) -> None:
        """Run one task once, and count how it ends; the next round tries again."""
        guarded(name, task, worker=self.kind.value)

    def _remember_engine(self) -> None:
        """Remember which engine this is, for the heartbeat: it may be another one by now."""
        self._engine_id = self._ask_engine()

    def end_sessions_of_dead_workers(self) -> None:
        """Close the database connections of workers that died, and with them their locks."""
        if self.failure_detector.is_reliable():
            end_sessions_of_dead_workers(Heartbeat, kind=self.kind.value, stale=self.times.stale)
