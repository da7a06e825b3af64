"""The run worker: executes one-shot runs and records every run.

A few claim threads claim what messages name; the message is settled once the claim is written. Each
run that is held has a recorder thread. The sweeper looks for runs that nobody works on, and asks
nobody but the database; the keeper has workspaces remove what was committed while nobody could tell
them. The loop itself is ``controlplane.work.worker``.

The first SIGTERM or SIGINT gives all runs to other workers, between two batches; the second does
not even wait for that. Nothing in a workspace notices either.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, connections

from controlplane.metrics.families import FOUND_BY_SWEEPER, LEASE_RENEWALS
from controlplane.work.amqp import Delivery, MalformedMessage
from controlplane.work.leases import Fence, LeasedQuerySet, LeaseLost
from controlplane.work.models import Heartbeat, SlotUsage
from controlplane.work.notifications import Heard, listen, listen_to
from controlplane.work.periodic import PeriodicTask
from controlplane.work.worker import Worker, WorkerTimes
from runs.input.later import forget_left_input, runs_with_input
from runs.models import Run
from runs.recording import claims, run_sweeper
from runs.recording.control import RunControl
from runs.recording.program_start import RecordLimits
from runs.recording.recorder import Recorder
from runs.recording.slots import Held, Slots
from runs.recording.thread_connections import Connections, StoppedError
from runs.run_messages import CANCELLATIONS, INPUT, QUEUED, RUN_REQUESTED
from runs.services import end_sessions_not_begun
from workspaces.models import Engine
from workspaces.runtimes.base import RuntimeAdapter

log = structlog.get_logger(__name__)

LOOK_EVERY = timedelta(seconds=5)
"""How often a worker asks which runs are to be cancelled, or were given input, though nobody told
it of any."""
LISTEN_AGAIN_AFTER = timedelta(seconds=1)
CLAIM_THREADS = 4
ANNOUNCED_FOR = timedelta(seconds=120)
"""A session that has not begun for so long will not any more: its gateway is gone, or so slow that
nobody waits for it. With fifty at once on a busy machine a minute was too little."""
DATABASE_CONNECTIONS = 32
"""So many recorders may be connected to the database at once, of the 100 that it takes by itself
and that two workers, their other threads and the API share."""
KEPT_CONNECTIONS = 4


class RunWorker(Worker):
    """One run worker process; ``max_runs`` ends it after so many runs.

    ``engine`` is the name of the engine that it serves; without one it records the runs of all.
    """

    kind = Heartbeat.Kind.RUN

    def __init__(
        self,
        *,
        adapter: RuntimeAdapter,
        limits: RecordLimits,
        broker_url: str,
        broker_timeout: float,
        capacity: int,
        sessions: int,
        workspaces: int,
        times: WorkerTimes,
        max_runs: int | None = None,
        engine: str = "",
    ) -> None:
        self._adapter = adapter
        self._limits = limits
        self._claimers = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="claim")
        self._slots = Slots(
            {
                Run.Mode.ONE_SHOT: capacity,
                Run.Mode.INTERACTIVE: sessions,
                Run.Mode.BOOT: workspaces,
            }
        )
        self._connections = Connections(DATABASE_CONNECTIONS, kept=KEPT_CONNECTIONS)
        cancelled = threading.Event()
        super().__init__(
            broker_url=broker_url,
            broker_timeout=broker_timeout,
            topology=RUN_REQUESTED.topology(),
            prefetch=CLAIM_THREADS,
            capacity=capacity,
            times=times,
            engine_id=adapter.engine_id,
            engine=engine,
            tasks=[
                PeriodicTask(
                    name="requests",
                    every=LOOK_EVERY,
                    steps={"look": self._look},
                    woken=cancelled,
                ),
                PeriodicTask(
                    name="notifications",
                    every=LISTEN_AGAIN_AFTER,
                    run=partial(listen, CANCELLATIONS, cancelled.set),
                ),
                PeriodicTask(
                    name="runs",
                    every=LISTEN_AGAIN_AFTER,
                    first=timedelta(),
                    run=partial(listen_to, [QUEUED, INPUT], self._on_news),
                ),
                PeriodicTask(
                    name="sweeper",
                    every=times.sweep,
                    first=timedelta(),
                    steps={
                        "engine": self._look_at_engine,
                        "sweep": self._sweep_runs,
                        "sessions": self.end_sessions_of_dead_workers,
                        "announced": lambda: end_sessions_not_begun(older_than=ANNOUNCED_FOR),
                    },
                ),
                PeriodicTask(
                    name="keeper",
                    every=times.keep,
                    first=times.sweep,
                    steps={
                        "forget": Heartbeat.objects.forget,
                        "input": forget_left_input,
                        "leftovers": run_sweeper.Leftovers(adapter, engine=engine).acknowledge,
                    },
                ),
            ],
            max_done=max_runs,
        )

    @property
    def leased(self) -> LeasedQuerySet[Any]:
        """Runs."""
        return Run.objects.all()

    def fences(self) -> list[Fence]:
        """Return the leases of the runs that recorders have."""
        return [held.fence for held in self._slots.holding()]

    def busy_with(self) -> Collection[uuid.UUID]:
        """Return the runs that have slots."""
        return self._slots.all()

    def lost(self, fence: Fence) -> None:
        """Stop the recorder of a run that another worker has, or whose record has just ended."""
        for held in self._slots.holding():
            if held.fence == fence:
                held.control.stopped.set()

    def slots(self) -> Mapping[str, SlotUsage]:
        """Return the slots by mode of run."""
        return self._slots.usage()

    def is_idle(self) -> bool:
        """Whether no run has a slot."""
        return not self._slots.all()

    def on_drain(self) -> None:
        """Stop the recorders: their runs are given back."""
        for held in self._slots.holding():
            held.control.stopped.set()

    def stop_now(self) -> None:
        """Do not wait for the recorders: their leases are released by whoever leaves."""
        self.stop_consuming()

    def close(self) -> None:
        """Wait for the claim threads."""
        self._claimers.shutdown(wait=True)
        self._connections.close()

    # ------------------------------------------------------------ claims

    def on_delivery(self, delivery: Delivery) -> None:
        """Hand the run that a message names to a claim thread."""
        try:
            run_id = RUN_REQUESTED.from_bytes(delivery.body)
        except MalformedMessage as exc:
            log.error("message_malformed", reason=str(exc))
            delivery.reject()
            return
        self._claimers.submit(self._claim_delivered, run_id, delivery)

    def _on_news(self, news: Heard | None) -> None:
        """Claim runs that somebody waits for, and wake the recorders of those with new input."""
        if news is None:
            self._wake_for_input()
            return
        for channel, run_id in news:
            if channel == QUEUED:
                self._on_queued(run_id)
            else:
                self._wake_for_input(run_id)

    def _wake_for_input(self, run_id: str = "") -> None:
        for held in self._slots.holding():
            if not run_id or str(held.fence.row_id) == run_id:
                held.control.given.set()

    def _on_queued(self, told: str) -> None:
        with contextlib.suppress(ValueError, RuntimeError):  # no id; the pool is shut down
            self._claimers.submit(self._claim_known, uuid.UUID(told), Run.Mode.ONE_SHOT)

    def _claim_delivered(self, run_id: uuid.UUID, delivery: Delivery) -> None:
        """In a claim thread. Nothing may escape."""
        settle: Callable[[Delivery], None] = Delivery.ack
        try:
            if self.draining.is_set():
                settle = Delivery.requeue
                return
            with self._connections.lent():
                # Without a free slot the message is done with too: the run is remembered, and a
                # sweeper finds the row.
                mode = None if run_id in self._slots.all() else claims.mode_of(run_id)
                if mode is None:
                    log.info("run_not_claimable", run_id=str(run_id))
                else:
                    self._claim(run_id, mode)
        except (DatabaseError, InterfaceError) as exc:
            log.warning("run_left_for_later", run_id=str(run_id), reason=type(exc).__name__)
            self.stopped.wait(1.0)
            settle = Delivery.requeue
        except Exception:
            log.exception("claim_failed", run_id=str(run_id))
        finally:
            settle(delivery)

    def _claim(self, run_id: uuid.UUID, mode: Run.Mode) -> None:
        """Claim the run if there is a slot for it, and start its recorder."""
        if not self._slots.acquire(run_id, mode):
            log.info("no_slot_free", run_id=str(run_id), mode=mode)
            return
        held = None
        try:
            asked = time.monotonic()
            run = claims.claim(
                run_id, worker_id=self.worker_id, lease=self.times.lease, engine=self._engine
            )
            if run is None:
                log.info("run_not_claimable", run_id=str(run_id))
                return
            log.info("run_claimed", run_id=str(run_id), mode=run.mode, claim_count=run.claim_count)
            held = Held(run.fence, RunControl())
            if run.cancel_requested_at is not None:
                held.control.cancelled.set()
            self._slots.hold(run_id, held)
            # A daemon: the second signal does not wait for it.
            thread = threading.Thread(
                target=self._record, args=(run, held, asked), name=f"run {run_id}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # No thread to be had: held by us without a recorder, it would be nobody's.
                self._slots.release(run_id)
                self._give_back(held)
                raise
        finally:
            if held is None:
                self._release(run_id, mode)

    def _release(self, run_id: uuid.UUID, mode: Run.Mode | str) -> None:
        """Free the slot of a run, and claim one that was refused for want of it."""
        self._slots.release(run_id)
        if self.draining.is_set():
            return
        waiting = self._slots.next_refused(Run.Mode(mode))
        if waiting is not None:
            with contextlib.suppress(RuntimeError):  # the pool is shut down: others claim it
                self._claimers.submit(self._claim_known, waiting, Run.Mode(mode))

    def _claim_known(self, run_id: uuid.UUID, mode: Run.Mode) -> None:
        """In a claim thread. Nothing may escape."""
        if self.draining.is_set():
            return
        try:
            with self._connections.lent():
                self._claim(run_id, mode)
        except (DatabaseError, InterfaceError) as exc:
            log.warning("run_left_for_later", run_id=str(run_id), reason=type(exc).__name__)
        except Exception:
            log.exception("claim_failed", run_id=str(run_id))

    # ------------------------------------------------------------ recorders

    def _record(self, run: Run, held: Held, claimed: float) -> None:
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
                    claimed=claimed,
                ).record()
                log.info("run_recorded")
            except LeaseLost:
                LEASE_RENEWALS.count(worker="run", outcome="lost")
                log.warning("run_lost")
            except StoppedError:
                self._give_back(held)
            except Exception:
                # The lease runs out by itself: whoever is next does not come at once.
                log.exception("recorder_failed")
            finally:
                connections.close_all()
                held.control.close()
                self._release(run.pk, run.mode)
                self.count_done()

    def _give_back(self, held: Held) -> None:
        try:
            Run.objects.release([held.fence])
            log.info("run_given_back")
        except (DatabaseError, InterfaceError) as exc:
            log.warning("run_not_given_back", reason=type(exc).__name__)

    # ------------------------------------------------------------ tasks

    def _look(self) -> None:
        """See to cancellations and input that no announcement told of."""
        holding = self._slots.holding()
        requested = claims.cancel_requests([held.fence for held in holding])
        given = runs_with_input([held.fence.row_id for held in holding])
        for held in holding:
            cancel = requested.get(held.fence.row_id)
            if cancel is None:
                self.lost(held.fence)
            elif cancel:
                held.control.cancelled.set()
            if held.fence.row_id in given:
                held.control.given.set()

    def _look_at_engine(self) -> None:
        if self._engine and Engine.objects.ends_workers(self._engine):
            self.leave("its engine is leaving")

    def _sweep_runs(self) -> None:
        if self.draining.is_set():
            return
        if self.failure_detector.is_reliable():
            expired = Run.objects.expire_leases_of_dead_workers(stale=self.times.stale)
            if expired:
                log.warning("leases_of_dead_workers_expired", runs=expired)
        claimable = partial(
            run_sweeper.claimable_runs, overdue=self.times.overdue, engine=self._engine
        )
        # Mostly there is none, and one look tells.
        modes = self._slots.modes if claimable(modes=self._slots.modes, limit=1) else ()
        for mode in modes:
            ours, free = self._slots.of(mode)
            found = claimable(modes=[mode], limit=max(free, 0) + len(ours) + 1)
            waiting = [run_id for run_id in found if run_id not in ours]
            for run_id in waiting[:free]:
                log.info("run_found_by_sweeper", run_id=str(run_id))
                FOUND_BY_SWEEPER.count(worker="run")
                self._claim(run_id, mode)
            if len(waiting) > free:
                log.warning("runs_wait_for_a_slot", mode=mode.value, capacity=len(ours) + free)
