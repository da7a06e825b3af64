"""How a run ended, from what its record says. Never from a client's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runs.agent.frames import Kind
from runs.ingest import meta as metas
from runs.ingest.meta import INT32_MAX
from runs.models import Run, RunEvent, RunProcess

START_FAILED = "run-start-failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run; the members that ``Run`` has for it."""

    status: Run.Status
    exit_code: int | None = None
    exit_signal: str = ""
    error_code: str = ""
    error_message: str = ""

    def settle(self, run_number: int) -> bool:
        """Settle the run; False when it was final already."""
        return bool(
            Run.objects.filter(number=run_number).settle(
                self.status,
                exit_code=self.exit_code,
                exit_signal=self.exit_signal,
                error_code=self.error_code,
                error_message=self.error_message,
            )
        )


def outcome(mode: str, told: Mapping[str, Any]) -> Outcome:
    """Return how a run ended from the meta of its ``recordSealed``.

    Cancelled when the exit says so; completed when the leader exited with 0, when a session's
    shell exited with anything, and when a sandbox was stopped in order; failed otherwise.
    """
    exit_ = told.get("exit")
    why = metas.text(told.get("reason"), 200)
    if not isinstance(exit_, Mapping):
        if mode == Run.Mode.BOOT and why == "stopped":
            return Outcome(Run.Status.COMPLETED)
        return Outcome(
            Run.Status.FAILED,
            error_code="record-ended-early",
            error_message=f"How the run ended is not known: its record ended early ({why or '?'}).",
        )
    code = metas.integer(exit_.get("code"), low=-INT32_MAX, high=INT32_MAX)
    signal = metas.text(exit_.get("signal"), 16)
    reason = metas.text(exit_.get("reason"), 16)
    if reason == "cancelled":
        return Outcome(Run.Status.CANCELLED, code, signal)
    exited = reason == "exited" and code is not None
    if (exited and (code == 0 or mode == Run.Mode.INTERACTIVE)) or (
        mode == Run.Mode.BOOT and why == "stopped"
    ):
        return Outcome(Run.Status.COMPLETED, code, signal)
    return Outcome(Run.Status.FAILED, code, signal, *_fault(reason, code, signal))


def _fault(reason: str, code: int | None, signal: str) -> tuple[str, str]:
    if reason == "timeout":
        return "run-timeout", "The time limit of the run was reached."
    if reason == "startFailed":
        return START_FAILED, "The command could not be started."
    if signal:
        return "run-signaled", f"The command was ended by {signal}."
    if code is not None:
        return "run-exited", f"The command exited with {code}."
    return "run-lost", "How the command ended is not known."


def ended(run: Run, told: Mapping[str, Any]) -> Outcome:
    """Return how a run ended from its stored record, whose ``recordSealed`` has this meta.

    A recorder that died before the end knows no exit; the leader's own event may.
    """
    exit_ = told.get("exit")
    if not isinstance(exit_, Mapping) or exit_.get("reason") == "lost":
        told = {**told, "exit": recorded_exit(run) or exit_}
    end = outcome(run.mode, told)
    if end.error_code == START_FAILED:
        return replace(end, error_message=_start_failure(run) or end.error_message)
    return end


def _start_failure(run: Run) -> str:
    """Return what the agent said of a command that could not be started; empty when nothing."""
    started = RunEvent.objects.filter(run_number=run.number, kind=Kind.PROCESS_STARTED)
    meta = started.order_by("sequence").values_list("meta", flat=True).first()
    said = metas.text(metas.read(bytes(meta or b"")).get("startFailed"), 500)
    return f"The command could not be started: {said}." if said else ""


def recorded_exit(run: Run) -> dict[str, Any] | None:
    """Return the exit of a run's leader as its record has it; None when it has none.

    For a record that lost its end after the leader's. A sandbox has many leaders and thus none.
    """
    if run.mode == Run.Mode.BOOT:
        return None
    leader = (
        RunProcess.objects.filter(run_number=run.number, leader=True, ended_us__isnull=False)
        .order_by("process_number")
        .first()
    )
    if leader is None:
        return None
    return {
        "code": leader.exit_code,
        "signal": leader.exit_signal or None,
        "reason": leader.exit_reason,
    }
