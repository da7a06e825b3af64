"""How a record ends whose end the agent cannot tell: its container is gone, silent or unreadable.

Each method looks once, and returns whether the record has ended; if not, the recorder tries again.
"""

from __future__ import annotations

import time

import structlog

from runs.models import Run
from runs.record.ingest import meta as metas
from runs.recording.collect import drain_container
from runs.recording.control import RunControl
from runs.recording.endings import NOT_RUNNING, Endings
from runs.recording.thread_connections import Database
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

MAX_DAMAGED = 5
"""So many connections in a row that bring nothing sound are no accident."""
UNREADABLE_SECONDS = 15.0
MAX_SAID = 300
"""So many characters of what the agent says are kept."""

_SPOOL_GONE = "The rest of the record is no longer in the workspace."
_UNREADABLE = "The record in the workspace cannot be read."
_SILENT = "The run's time was over, and the workspace sent nothing more about it."


class UnheardEnds:
    """Ends one run's record where its source does not, and says what is missing."""

    def __init__(
        self,
        run: Run,
        control: RunControl,
        adapter: RuntimeAdapter,
        endings: Endings,
        database: Database,
        *,
        begins_until: float,
    ) -> None:
        """Take a run; until ``begins_until`` (monotonic) a session may be without a spool."""
        assert run.attempt is not None
        self._run = run
        self._boot_run_id = run.attempt.run_id
        self._control = control
        self._adapter = adapter
        self._endings = endings
        self._database = database
        self._damaged = 0
        self._unreadable_since = 0.0
        self._begins_until = begins_until

    def is_heard(self) -> None:
        """Forget what could not be read before: something sound has come."""
        self._damaged, self._unreadable_since = 0, 0.0

    def is_connected(self, seconds: float) -> None:
        """Forget it also when a connection has lasted so long: there may have been nothing to say.

        Its greeting is not enough, which a damaged spool begins with too.
        """
        if seconds >= UNREADABLE_SECONDS:
            self.is_heard()

    def without_container(self, error: LaunchError) -> bool:
        """Read what an ended container still holds, and end the record when no more can come."""
        endings = self._endings
        try:
            if self._database(endings.may_come_back):
                return False
            if error.code == NOT_RUNNING:
                self._database(
                    lambda: drain_container(self._adapter, self._boot_run_id, only=self._run.pk)
                )
                if self._has_ended():
                    return True
            return self._database(
                lambda: endings.without_container(error, cancelled=self._is_cancelled())
            )
        except LaunchError as exc:
            log.info("workspace_not_reached", code=exc.code)
            return False

    def not_there(self) -> bool:
        """End the record of a run that the agent does not know, unless it is not there yet."""
        if self._has_ended():
            return True
        endings, cancelled = self._endings, self._is_cancelled()
        if self._run.mode == Run.Mode.BOOT:
            if self._database(endings.may_come_back):
                return False
            gone = LaunchError(NOT_RUNNING, "The container has no record of the run.")
            return self._database(lambda: endings.without_container(gone))
        if self._database(endings.has_begun):
            self._database(lambda: endings.lost("record-lost", _SPOOL_GONE, cancelled=cancelled))
            return True
        if cancelled:
            self._database(
                lambda: endings.not_started(
                    "", "The run was cancelled before it began.", cancelled=True
                )
            )
            return True
        if self._run.mode == Run.Mode.ONE_SHOT:
            return self.give_up_sometime()
        if time.monotonic() < self._begins_until:
            return False
        self._database(
            lambda: endings.not_started("session-not-begun", "The session was never started.")
        )
        return True

    def give_up_sometime(self) -> bool:
        """End a record that cannot be read, and not only once."""
        self._damaged += 1
        return self._damaged >= MAX_DAMAGED and self.end_unreadable(_UNREADABLE)

    def give_up_after_a_while(self, errors: str) -> bool:
        """End a record that the agent itself cannot read, unless that passes.

        It also cannot while the workspace is out of memory or processes. The last line of its
        ``errors`` says why.
        """
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        lasted = now - self._unreadable_since >= UNREADABLE_SECONDS
        said = metas.text(errors.strip().rpartition("\n")[2], MAX_SAID)
        return lasted and self.end_unreadable(f"{_UNREADABLE} {said}".rstrip())

    def end_unreadable(self, detail: str) -> bool:
        """End a record of which no more can be stored; ``detail`` says why."""
        cancelled = self._is_cancelled()
        self._database(lambda: self._endings.lost("record-lost", detail, cancelled=cancelled))
        return True

    def end_silent(self) -> bool:
        """End a run that should be over and is not heard, unless it is the engine that is away.

        Its record may be whole in the workspace.
        """
        try:
            self._adapter.engine_id()
        except LaunchError as exc:
            log.info("engine_not_reached", code=exc.code)
            return False
        cancelled = self._is_cancelled()
        self._database(
            lambda: self._endings.lost("time-limit-exceeded", _SILENT, cancelled=cancelled)
        )
        return True

    def _has_ended(self) -> bool:
        return self._database(lambda: self._endings.head().sealed_at is not None)

    def _is_cancelled(self) -> bool:
        return self._control.cancelled.is_set()
