"""Handing the input of a run to its program, piece by piece, until nothing waits."""

from __future__ import annotations

import json
import time
from functools import partial

import structlog

from runs.input import later as inputs
from runs.models import Run
from runs.recording.control import RunControl
from runs.recording.tail_channel import NOT_OURS
from runs.recording.thread_connections import Database
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

CALL_SECONDS = 20.0
FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 2.0


class InputChannel:
    """The input of one run, as its recorder sees it."""

    def __init__(
        self, run: Run, control: RunControl, adapter: RuntimeAdapter, database: Database
    ) -> None:
        assert run.attempt is not None
        self._run = run
        self._boot_run_id = run.attempt.run_id
        self._control = control
        self._adapter = adapter
        self._database = database
        self._retry = FIRST_RETRY_SECONDS
        self._again_at: float | None = None
        self._position = 0
        if run.mode == Run.Mode.ONE_SHOT:
            control.given.set()  # what was announced before we were there, a signal for example

    def seconds_left(self, now: float) -> float:
        """Return after how long :meth:`hand_over` has something to do again."""
        return float("inf") if self._again_at is None else max(0.0, self._again_at - now)

    def hand_over(self) -> None:
        """Hand over what waits, if anything new does, or if it is time to try again."""
        is_due = self._again_at is not None and time.monotonic() >= self._again_at
        if not self._control.given.is_set() and not is_due:
            return
        self._control.given.clear()
        while (waiting := self._database(lambda: inputs.waiting_input(self._run))).items:
            position = self._told(json.dumps(waiting.items).encode())
            if position is None:
                return
            # What the agent was not told of yet is not done because something overtook it.
            self._database(partial(inputs.handed_over, self._run, min(position, waiting.through)))
            if position < waiting.through:
                if position > self._position:
                    self._retry = FIRST_RETRY_SECONDS  # it reads
                self._position = position
                self._try_again()
                return
        self._again_at, self._retry = None, FIRST_RETRY_SECONDS

    def close(self) -> None:
        """Forget what the program did not take."""
        if (self._run.command or {}).get("moreInput"):
            self._database(lambda: inputs.forget_input(self._run))

    def _told(self, content: bytes) -> int | None:
        """Return up to which position the agent has it; None when it is to be asked again."""
        arguments = ["input", str(self._run.pk)]
        try:
            answer = self._adapter.call_agent(
                self._boot_run_id, arguments, stdin=content, timeout=CALL_SECONDS
            )
            told = json.loads(answer.stdout)
            if told["state"] == "over":
                self._again_at = None
                return None
            return int(told["position"])
        except LaunchError as exc:
            log.info("input_not_delivered", code=exc.code)
        except NOT_OURS:
            log.info("input_not_taken", run_id=str(self._run.pk))
        self._try_again()
        return None

    def _try_again(self) -> None:
        """Try again later, and later each time while the program reads nothing."""
        self._again_at = time.monotonic() + self._retry
        self._retry = min(self._retry * 2, MAX_RETRY_SECONDS)
