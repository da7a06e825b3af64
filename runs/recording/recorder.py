"""The recorder of one run: from the spool in its workspace to the database, until its end is there.

Nothing is acknowledged to the workspace before it is committed, and everything may be repeated:
the store knows what it has already. So whatever breaks on the way (the connection, the database,
this process) the answer is the same: connect again and go on after the last event stored. While the
database is away the recorder keeps what it has and reads nothing more; the workspace's spool takes
the rest.
"""

from __future__ import annotations

import contextlib
import time

import structlog
from django.db import DatabaseError, DataError, IntegrityError, transaction

from controlplane.errors import JobError
from controlplane.metrics.families import INGEST_LAG
from controlplane.work.leases import LeaseLost
from runs.agent.record.frames import HEADER, FrameError, Kind
from runs.models import Run
from runs.record import egress_endings, store
from runs.recording import program_start as execution
from runs.recording.control import RunControl
from runs.recording.endings import GONE, NOT_RUNNING, Endings
from runs.recording.input_channel import InputChannel
from runs.recording.program_start import RecordLimits, StartUnknownError, time_limit_seconds
from runs.recording.tail_channel import NO_SUCH_RUN, UNREADABLE, TailChannel, TailEndedError
from runs.recording.thread_connections import Connections, Database, StoppedError
from runs.recording.unheard_ends import UnheardEnds
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

BATCH_SECONDS = 0.1
"""How long what arrives while its run is busy may be gathered for one batch."""
BATCH_SHARE = 3
"""After a batch it gathers for so many times as long as that took to store."""
FIRST_SECONDS = 0.02
"""How long the first events of a run, which say how it began, wait for some that say more."""
SURE_SECONDS = 1.0
"""For so long after a claim the lease is taken to be held, where it lasts longer."""
LOOK_SECONDS = 10.0
"""How often a recorder without news looks whether a run that should have ended is silent."""
IDLE_SECONDS = 1.0
"""A database connection that is not used for longer is given back."""
LAST_ACK_SECONDS = 5.0
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 3.0
NOT_BEGUN_SECONDS = 60.0
"""How long a session that its gateway has begun may be without a spool: the slowest agent of fifty
that start at once, and no longer, as the gateway may have been killed."""
STOP_AGAIN_SECONDS = 1.0
"""How long to wait before a run that could not be told to end is told again."""
SILENCE_SECONDS = 60.0
"""How long after its last moment a run may go on without a word."""


class _SilentError(Exception):
    """The run should have ended long ago, and nothing is heard of it."""


class Recorder:
    """Records one claimed run. :meth:`record` is called once, on a thread of its own."""

    def __init__(
        self,
        run: Run,
        control: RunControl,
        *,
        adapter: RuntimeAdapter,
        limits: RecordLimits,
        connections: Connections | None = None,
        claimed: float | None = None,
    ) -> None:
        """Take a run whose claim was asked for at ``claimed`` (monotonic), if that is known."""
        assert run.attempt is not None
        self._run = run
        self._boot_run_id = run.attempt.run_id
        self._fence = run.fence
        self._control = control
        self._adapter = adapter
        self._limits = limits
        self._database = Database(connections or Connections(1), control.stopped)
        self._endings = Endings(run, self._fence, adapter)
        self._input = InputChannel(run, control, adapter, self._database)
        self._began = self._heard = self._stored_at = self._used_at = time.monotonic()
        self._unheard = UnheardEnds(
            run,
            control,
            adapter,
            self._endings,
            self._database,
            begins_until=self._began + NOT_BEGUN_SECONDS - self._seconds_before_us(),
        )
        self._last_moment = self._began + self._seconds_allowed() - self._seconds_before_us()
        self._stopped_by = float("inf")
        self._start_known = False
        self._took = 0.0
        self._retry = RETRY_SECONDS
        self._stop_accepted = False
        self._stop_again_at = 0.0
        # Nothing can be stored of what nobody has claimed before.
        self._is_new = run.mode == Run.Mode.ONE_SHOT and run.claim_count == 1
        self._claimed = claimed
        self._to_open = ""

    def record(self) -> None:
        """Execute the run if that is still to be done, and record it until its record has ended.

        Raises ``StoppedError`` when it was told to stop, ``LeaseLost`` when the run is not
        ours any more.
        """
        try:
            while not self._go_on():
                self._pause()
            self._input.close()
        finally:
            self._database.leave(keep=True)

    # ------------------------------------------------------------ one try after the other

    def _go_on(self) -> bool:
        """Go as far as possible; True when the record has ended, False to try again soon."""
        try:
            self._look()
            if self._is_new:
                self._is_new = False
                return self._start(begun=False, new=True) or self._follow()
            head = self._database(self._endings.head)
            if head.sealed_at is not None:
                return True
            return self._start(begun=bool(head.source_id or head.event_count)) or self._follow()
        except _SilentError:
            if self._unheard.end_silent():
                return True
            self._heard = time.monotonic()  # it is the engine that is away
            return False
        except LaunchError as exc:
            log.info("workspace_not_reached", code=exc.code)
            return exc.code in (GONE, NOT_RUNNING) and self._unheard.without_container(exc)
        except TailEndedError as exc:
            log.info("tail_ended", reason=str(exc))
            if exc.exit_code in UNREADABLE:
                return self._unheard.give_up_after_a_while(exc.errors)
            return exc.exit_code == NO_SUCH_RUN and self._unheard.not_there()
        except StartUnknownError as exc:
            log.warning("start_unknown", reason=str(exc))
            return False
        except store.RecordSealed:
            return True
        except store.SourceRefused as exc:
            log.error("record_refused", reason=str(exc)[:500])
            return self._unheard.end_unreadable(str(exc))
        except (FrameError, DataError, IntegrityError) as exc:
            log.warning("record_damaged", error=type(exc).__name__, reason=str(exc)[:500])
            return self._unheard.give_up_sometime()
        except store.SourceMismatch as exc:
            # What this container has is part of the record no more; another one is to come.
            log.warning("source_followed", reason=str(exc))
            return False
        except DatabaseError as exc:
            # Not the record's fault, whatever it is: a migration that is still to come, say.
            log.error("record_not_stored", error=type(exc).__name__, reason=str(exc)[:500])
            return False
        except (StoppedError, LeaseLost):
            raise
        except Exception:
            # A fault of ours, or a forgery that nobody thought of: without an end the run would
            # go from worker to worker for ever.
            log.exception("record_not_understood")
            return self._unheard.give_up_sometime()

    def _is_held_surely(self) -> bool:
        """Whether the lease is so young that nobody else can have the run."""
        if self._claimed is None or time.monotonic() - self._claimed > SURE_SECONDS:
            return False
        claimed_at, until = self._run.claimed_at, self._run.lease_expires_at
        assert claimed_at is not None
        return until is not None and (until - claimed_at).total_seconds() > SURE_SECONDS

    def _start(self, *, begun: bool, new: bool = False) -> bool:
        """Execute a one-shot run that has not begun; True when its record has ended.

        ``new``: nobody can have been at it before.
        """
        if self._run.mode == Run.Mode.BOOT:
            return self._database(self._endings.without_runtime)
        if begun or self._run.mode != Run.Mode.ONE_SHOT:
            return False
        try:
            if self._control.cancelled.is_set():
                # Somebody may have started it before us: then it is there to be stopped.
                return False
            if not (new and self._is_held_surely()):
                self._database(lambda: Run.objects.require(self._fence))
            started = execution.start(self._adapter, self._run, self._limits)
        except LaunchError:
            raise
        except JobError as exc:
            log.info("run_refused", code=exc.code)
            refusal = exc
            self._database(lambda: self._endings.not_started(refusal.code, refusal.message))
            return True
        with contextlib.closing(started):
            spool = started.spool_id
            if spool is None:
                return False
            # From here on it has begun, whatever becomes of its folder in the workspace.
            if new:
                return self._record_new(started, spool)
            stored = self._database(lambda: self._open_source(spool))
            tail = started.tail()
            # A worker before us may have stored some of it: then it is asked for the rest.
            return tail.hello.spool_id == spool and not stored and self._transfer(tail)

    def _record_new(self, started: execution.Started, spool: str) -> bool:
        """Store what a run says that has just begun, its spool with the first of it."""
        self._to_open = spool
        try:
            tail = started.tail()
            return tail.hello.spool_id == spool and self._transfer(tail)
        finally:
            if self._to_open:
                self._database(self._open_now)

    def _follow(self) -> bool:
        """Store what the agent sends; True when the end of the record is stored."""
        first = self._database(self._next_to_store)
        tail = TailChannel.open(self._adapter, self._boot_run_id, self._run.pk, first)
        try:
            spool = tail.hello.spool_id
            stored = self._database(lambda: self._open_source(spool))
            if first > stored + 1:
                tail.close()
                tail = TailChannel.open(self._adapter, self._boot_run_id, self._run.pk, stored + 1)
            if stored:
                tail.acknowledge(stored)
            return self._transfer(tail)
        finally:
            tail.close()

    def _transfer(self, tail: TailChannel) -> bool:
        """Store what comes, batch by batch; True when that was the end of the record."""
        batch: list[bytes] = []
        size = 0
        connected = self._used_at = time.monotonic()
        due = connected + FIRST_SECONDS
        while True:
            self._look()
            if not self._to_open:
                self._input.hand_over()
            now = time.monotonic()
            is_due = bool(batch or self._to_open)
            wait = max(0.0, due - now) if is_due else self._seconds_to_next_look(now)
            wait = min(wait, self._input.seconds_left(now))
            if self._control.cancelled.is_set() and not self._stop_accepted:
                wait = min(wait, max(0.0, self._stop_again_at - now))
            try:
                contents = tail.read(wait, wake=self._control)
            except (TailEndedError, FrameError):
                # What came whole before is as good as if more had followed.
                if batch and self._store(tail, batch):
                    return True
                raise
            now = time.monotonic()
            self._unheard.is_connected(now - connected)
            if contents:
                if _ends(contents):
                    due = now  # nothing more will come, and its container waits for this
                elif self._to_open:
                    # How it began waits a moment for more, and nothing that it says does.
                    due = now if any(map(_has_output, contents)) else due
                elif not batch:
                    # At once after a pause, and then not all of the time.
                    pause = min(BATCH_SECONDS, self._took * BATCH_SHARE)
                    due = max(now, self._stored_at + pause)
                self._heard = now
                batch += contents
                size += sum(map(len, contents))
            elif not batch and now - self._used_at >= IDLE_SECONDS:
                self._database.leave(keep=True)
            is_full = size >= store.BATCH_BYTES or len(batch) >= store.BATCH_EVENTS
            if batch and (now >= due or is_full):
                if self._store(tail, batch):
                    return True
                batch, size = [], 0
            elif self._to_open and now >= due:
                self._database(self._open_now)

    def _seconds_to_next_look(self, now: float) -> float:
        """Return how long to wait for news; the worker ends the wait when it asks for something."""
        until_idle = self._used_at + IDLE_SECONDS - now
        return until_idle if until_idle > 0 else LOOK_SECONDS

    def _store(self, tail: TailChannel, batch: list[bytes]) -> bool:
        """Commit, then acknowledge; True when that was the end of the record."""
        began = time.monotonic()
        # Anywhere in it: what a workspace says behind its end must not hide what it had reached.
        if self._run.mode == Run.Mode.BOOT and any(map(_is_end, batch)):
            self._database(lambda: egress_endings.settle(self._run))
        appended = self._database(lambda: self._append(tail.hello.spool_id, batch))
        self._to_open = ""
        self._took = time.monotonic() - began
        if appended.events:
            _, written_us, *_ = HEADER.unpack_from(batch[0])
            INGEST_LAG.observe(max(0.0, time.time() - written_us / 1e6))
        self._stored_at = self._used_at = self._heard = time.monotonic()
        self._retry = RETRY_SECONDS
        self._unheard.is_heard()
        tail.acknowledge(appended.last_sequence)
        if appended.sealed:
            tail.wait_end(LAST_ACK_SECONDS)
        return appended.sealed

    # ------------------------------------------------------------ the database

    def _next_to_store(self) -> int:
        """Return which event of the present source comes next, were it still this spool."""
        head = self._endings.head()
        of_a_spool = head.source_id and not head.source_id.startswith("build:")
        return head.last_sequence - head.source_base + 1 if of_a_spool else 1

    def _open_source(self, spool_id: str) -> int:
        """Let the spool write to the record, and erase what only the start of the run needed."""
        Run.objects.require(self._fence)
        with transaction.atomic():
            stored = store.open_source(self._run.number, spool_id)
            self._erase_input()
        self._note_start()
        return stored

    def _erase_input(self) -> None:
        if self._run.sealed_input is not None:
            Run.objects.filter(pk=self._run.pk).update(sealed_input=None)

    def _note_start(self) -> None:
        if not self._start_known:
            # Until here it counted from the claim, which may be long before the workspace answers.
            begun_for = 0.0 if self._to_open else self._endings.begun_for().total_seconds()
            self._last_moment = time.monotonic() - begun_for + self._seconds_allowed()
            self._start_known = True

    def _open_now(self) -> None:
        self._open_source(self._to_open)
        self._to_open = ""

    def _append(self, spool_id: str, contents: list[bytes]) -> store.Appended:
        if self._to_open:
            return self._append_first(spool_id, contents)
        run, fence = self._run, self._fence
        return store.append(run.number, spool_id, contents, fence=fence, run=run)

    def _append_first(self, spool_id: str, contents: list[bytes]) -> store.Appended:
        """Open the source with its first events, in one transaction."""
        run, fence = self._run, self._fence
        try:
            appended = store.append(
                run.number, spool_id, contents, fence=fence, opening=True, run=run
            )
        except store.SourceRefused:
            self._has_opened()  # what came before is stored
            raise
        self._has_opened()
        return appended

    def _has_opened(self) -> None:
        # A crash before this leaves the input to whoever follows, or to the end of the run.
        self._erase_input()
        self._note_start()

    # ------------------------------------------------------------ what the worker and time ask

    def _look(self) -> None:
        """Act on what the worker asked for; raise ``StoppedError`` when it is to stop."""
        if self._control.stopped.is_set():
            raise StoppedError
        now = time.monotonic()
        over = min(self._last_moment, self._stopped_by) + SILENCE_SECONDS
        if now > over and now > self._heard + SILENCE_SECONDS:
            raise _SilentError
        to_stop = self._control.cancelled.is_set() and not self._stop_accepted
        if to_stop and now >= self._stop_again_at:
            self._stop_run()

    def _stop_run(self) -> None:
        """Ask the agent to end the run; unless it has been told to, a later look asks again."""
        grace = self._limits.grace_seconds
        # Also when it cannot be told: a run that is to end does not go on because it is silent.
        self._stopped_by = min(self._stopped_by, time.monotonic() + grace)
        arguments = ["stop", str(self._run.pk), "--reason", "cancelled", "--grace", f"{grace:g}"]
        try:
            answer = self._adapter.call_agent(
                self._boot_run_id, arguments, timeout=execution.CALL_SECONDS
            )
        except LaunchError as exc:
            log.info("stop_not_delivered", code=exc.code)
        else:
            log.info("run_stop_asked", exit_code=answer.exit_code)
            # A run that is just being started cannot be told yet.
            self._stop_accepted = answer.exit_code == 0
        self._stop_again_at = time.monotonic() + STOP_AGAIN_SECONDS

    def _pause(self) -> None:
        """Wait before the next try, longer each time in a row."""
        self._database.leave()
        if self._control.stopped.wait(self._retry):
            raise StoppedError
        self._retry = min(self._retry * 2, MAX_RETRY_SECONDS)

    def _seconds_allowed(self) -> float:
        """Return how long the run's processes may live."""
        if self._run.mode != Run.Mode.ONE_SHOT and self._run.time_limit_ms is None:
            return float("inf")
        return time_limit_seconds(self._run, self._limits) + self._limits.grace_seconds

    def _seconds_before_us(self) -> float:
        """Return how long the run had run when it was claimed."""
        assert self._run.started_at is not None
        assert self._run.claimed_at is not None
        return (self._run.claimed_at - self._run.started_at).total_seconds()


def _has_output(content: bytes) -> bool:
    return len(content) >= HEADER.size and HEADER.unpack_from(content)[3] == Kind.IO_CHUNK


def _ends(contents: list[bytes]) -> bool:
    """Whether the last of these frames seals the record."""
    return _is_end(contents[-1])


def _is_end(content: bytes) -> bool:
    return len(content) >= HEADER.size and HEADER.unpack_from(content)[3] == Kind.RECORD_SEALED
