"""How a run ended, from what its record says. Never from a client's word.

A session has any number of leaders, one for each channel that ran a command, and none of them is
its end: that is when its client leaves. So a session whose record ended in order is

* ``cancelled`` when its end was asked for, and was not there before;
* ``failed`` when none of the commands that it was to run could be started, when a time limit ended
  it, or when nobody knows how its last command ended;
* ``completed`` otherwise, with the exit of the leader that was started last, if there was one.

One whose record ended early is ``failed``, unless every command that is in it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runs.agent.record.frames import Kind
from runs.models import Run, RunEvent, RunProcess
from runs.record.ingest import meta as metas
from runs.record.ingest import tables
from runs.record.ingest.meta import INT32_MAX
from workspaces.harnesses import HARNESSES, REFUSED

START_FAILED = "run-start-failed"
EXITED = "run-exited"
ENDED = "ended"
IN_ORDER = frozenset({ENDED, "stopped", "runtime-ended"})
"""Why a record ends that the agent has ended: by itself, because somebody asked, or its runtime."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run; the members that ``Run`` has for it."""

    status: Run.Status
    exit_code: int | None = None
    exit_signal: str = ""
    error_code: str = ""
    error_message: str = ""

    def settle(self, run_number: int) -> None:
        """Settle the run, unless it is final already."""
        tables.write([self.settling(run_number)])

    def settling(self, run_number: int) -> tables.Beside:
        """Return what settles the run, in one row; in none when it is final already."""
        how = [self.exit_code, self.exit_signal, self.error_code, self.error_message]
        return _SETTLE, [self.status, *how, run_number]

    def to_members(self) -> dict[str, Any]:
        """Return it as announcements have it."""
        return {
            "status": self.status,
            "exitCode": self.exit_code,
            "exitSignal": self.exit_signal,
            "errorCode": self.error_code,
            "errorMessage": self.error_message,
        }


# As `RunQuerySet.settle` has it.
_SETTLE = """
UPDATE runs_run SET status = %s, exit_code = %s, exit_signal = %s, error_code = %s,
    error_message = %s, finished_at = statement_timestamp(), updated_at = statement_timestamp(),
    worker_id = '', lease_expires_at = NULL, sealed_input = NULL
WHERE number = %s AND status IN ('queued', 'running') RETURNING number"""


def outcome(mode: str, told: Mapping[str, Any]) -> Outcome:
    """Return how a run of one leader ended from the meta of its ``recordSealed``.

    Cancelled when the exit says so; completed when the leader exited with 0, and when a sandbox was
    stopped in order; failed otherwise.
    """
    exit_ = told.get("exit")
    why = metas.text(told.get("reason"), 200)
    if not isinstance(exit_, Mapping):
        if mode == Run.Mode.BOOT and why == "stopped":
            return Outcome(Run.Status.COMPLETED)
        return _ended_early(why)
    code, signal, reason = _members(exit_)
    if reason == "cancelled":
        return Outcome(Run.Status.CANCELLED, code, signal)
    if (reason == "exited" and code == 0) or (mode == Run.Mode.BOOT and why == "stopped"):
        return Outcome(Run.Status.COMPLETED, code, signal)
    return Outcome(Run.Status.FAILED, code, signal, *_fault(reason, code, signal))


def _session_outcome(run: Run, told: Mapping[str, Any]) -> Outcome:
    why = metas.text(told.get("reason"), 200)
    in_order = why in IN_ORDER
    exit_ = told.get("exit")
    if not in_order or not isinstance(exit_, Mapping) or exit_.get("reason") == "lost":
        exit_ = recorded_exit(run)
        if exit_ is None and not in_order:
            return _ended_early(why)
    code, signal, reason = _members(exit_ or {})
    asked = run.cancel_requested_at is not None and in_order and why != ENDED
    if asked or reason == "cancelled":
        return Outcome(Run.Status.CANCELLED, code, signal)
    if reason in ("timeout", "lost") or (reason == "startFailed" and not _was_anything_run(run)):
        return Outcome(Run.Status.FAILED, code, signal, *_fault(reason, code, signal))
    return Outcome(Run.Status.COMPLETED, code, signal)


def _was_anything_run(run: Run) -> bool:
    leaders = RunProcess.objects.filter(run_number=run.number, leader=True)
    return leaders.exclude(exit_reason="startFailed").exists()


def _members(exit_: Mapping[str, Any]) -> tuple[int | None, str, str]:
    return (
        metas.integer(exit_.get("code"), low=-INT32_MAX, high=INT32_MAX),
        metas.text(exit_.get("signal"), 16),
        metas.text(exit_.get("reason")),
    )


def _ended_early(why: str) -> Outcome:
    return Outcome(
        Run.Status.FAILED,
        error_code="record-ended-early",
        error_message=f"How the run ended is not known: its record ended early ({why or '?'}).",
    )


def _fault(reason: str, code: int | None, signal: str) -> tuple[str, str]:
    if reason == "timeout":
        return "run-timeout", "The time limit of the run was reached."
    if reason == "outOfMemory":
        return "run-out-of-memory", "The workspace ran out of memory, and the command was ended."
    if reason == "startFailed":
        return START_FAILED, "The command could not be started."
    if signal:
        return "run-signaled", f"The command was ended by {signal}."
    if code is not None:
        return EXITED, f"The command exited with {code}."
    return "run-lost", "How the command ended is not known."


def is_told(run: Run, told: Mapping[str, Any]) -> bool:
    """Whether :func:`ended` asks nothing of the processes in the record."""
    exit_ = told.get("exit")
    is_known = isinstance(exit_, Mapping) and exit_.get("reason") != "lost"
    return is_known and run.mode != Run.Mode.INTERACTIVE


def ended(run: Run, told: Mapping[str, Any]) -> Outcome:
    """Return how a run ended from its stored record, whose ``recordSealed`` has this meta.

    A recorder that died before the end knows no exit; the leaders' own events may.
    """
    if run.mode == Run.Mode.INTERACTIVE:
        end = _session_outcome(run, told)
    else:
        if not is_told(run, told):
            told = {**told, "exit": recorded_exit(run) or told.get("exit")}
        end = outcome(run.mode, told)
    if end.error_code == START_FAILED:
        return replace(end, error_message=_start_failure(run) or end.error_message)
    if end.error_code == EXITED and end.exit_code == REFUSED and _may_refuse(run):
        message = "The harness refused the prompt; its output says why."
        return replace(end, error_code="harness-refused", error_message=message)
    return end


def _may_refuse(run: Run) -> bool:
    """Whether the run's command is a prompt of a harness that its blueprint restricts."""
    harness, command = HARNESSES.get(run.harness_id), run.command
    if harness is None or command is None:
        return False
    return harness.may_refuse([command["executable"], *command.get("args", ())])


def _start_failure(run: Run) -> str:
    """Return what the agent said of the last command, which could not be started, if anything."""
    started = RunEvent.objects.filter(run_number=run.number, kind=Kind.PROCESS_STARTED)
    meta = started.order_by("-sequence").values_list("meta", flat=True).first()
    said = metas.text(metas.read(bytes(meta or b"")).get("startFailed"), 500)
    return f"The command could not be started: {said}." if said else ""


def recorded_exit(run: Run) -> dict[str, Any] | None:
    """Return the exit of the leader that a run started last, as its record has it.

    For a record that lost its end after that. None while a leader has not ended, when there was
    none, and for a sandbox, whose leaders are not its end.
    """
    if run.mode == Run.Mode.BOOT:
        return None
    leaders = RunProcess.objects.filter(run_number=run.number, leader=True)
    if leaders.filter(ended_us__isnull=True).exists():
        return None
    last = leaders.order_by("-process_number").first()
    if last is None:
        return None
    return {
        "code": last.exit_code,
        "signal": last.exit_signal or None,
        "reason": last.exit_reason,
    }
