"""The record of the boot run: PID 1 is its writer, for as long as the container lives.

A container that starts again may go on with the record of its last life: when its configuration
says so (`restart`), and when that life was killed before it could end the record. What a killed
life left open is ended as lost.
"""

from __future__ import annotations

import base64
import os
import time
from typing import Any, Dict, Optional, Sequence

from ..config import Config, Record
from ..masking.masker import Masker
from ..process.program import Account, Exit
from ..record.frames import Confidence, Kind, Method, Stream
from ..record.recording import RecordedStream, Recording, encode_meta, text_of
from ..record.repair import seal_abandoned
from ..record.spool import (
    SpoolBusy,
    SpoolExists,
    SpoolFailed,
    SpoolLimits,
    SpoolMissing,
    SpoolWriter,
)
from ..status_file import StepStatus
from .markers import RECORD_LEFT, Markers

Ending = Dict[str, Any]

_FORWARDS = {"forwardOpened": Kind.FORWARD_OPENED, "forwardClosed": Kind.FORWARD_CLOSED}


class RecordError(Exception):
    """The boot cannot be recorded, so it must not take place; the message says why."""


def ending_of(ended: Optional[Exit], *, timed_out: bool = False) -> Ending:
    """How a process ended, as `recordSealed` has it."""
    if ended is None:
        return {"code": None, "signal": None, "reason": "lost"}
    reason = "exited" if ended.signal_number is None else "signaled"
    if timed_out:
        reason = "timeout"
    return {"code": ended.code, "signal": ended.signal_name, "reason": reason}


def start_failed(code: int) -> Ending:
    """The same of something that was not there to be run."""
    return {"code": code, "signal": None, "reason": "startFailed"}


class RecordedProcess:
    """A step or the foreground in the record: its number and its two streams."""

    def __init__(self, number: int, stdout: RecordedStream, stderr: RecordedStream) -> None:
        self.number = number
        self.stdout = stdout
        self.stderr = stderr
        self.started_at = time.monotonic()


class BootRecord:
    """What happens in a boot, as events. No call waits for anything but the disk."""

    def __init__(
        self,
        config: Config,
        state_directory: str,
        *,
        boot_id: str,
        account: Account,
        masker: Masker,
    ) -> None:
        """Begin the record or go on with it, durably; raises RecordError."""
        self._config = config
        self._markers = Markers(state_directory)
        self.runs_root = runs_root = os.path.join(os.path.abspath(state_directory), "runs")
        try:
            os.makedirs(runs_root, mode=0o700, exist_ok=True)
            self._writer = _open(config, runs_root)
            self._recording = _BootRecording(
                self._writer,
                policy=config.record.policy,
                masker=masker,
                numbered=self._writer.summary.processes,
            )
            was_killed = self._writer.last_sequence > 0 and not self._markers.has(RECORD_LEFT)
            if self._writer.last_sequence == 0:
                self._record_start(boot_id, account)
            self._markers.remove(RECORD_LEFT)
            self._tell("starting", message=f"boot {boot_id}")
            if was_killed:
                self._end_lost()
            self._writer.sync()
            seal_abandoned(runs_root)
        except (SpoolFailed, OSError) as error:
            raise RecordError(str(error)) from None

    # ------------------------------------------------------------ what happens

    def state(
        self, state: str, *, step: Optional[StepStatus] = None, message: str = "", **more: Any
    ) -> None:
        """The boot has come this far; durable when this returns."""
        self._tell(state, step=step, message=message, **more)
        self._writer.sync()

    def stopping(self, *, step: Optional[StepStatus] = None, message: str = "") -> None:
        """It is about to end everything; durable with the end, which nothing is to hold up."""
        self._tell("stopping", step=step, message=message)
        self._writer.flush()

    def _tell(
        self, state: str, *, step: Optional[StepStatus] = None, message: str = "", **more: Any
    ) -> None:
        meta: Dict[str, Any] = {"state": state}
        if message:
            meta["message"] = self._recording.mask_text(message)
        if step is not None:
            meta["step"] = step.to_wire()
        meta.update(more)
        self._recording.event(Kind.RUNTIME_STATE_CHANGED, meta)

    def started(self, pid: int, name: str, argv: Sequence[str], cwd: str) -> RecordedProcess:
        """A step or the foreground runs."""
        number = self._recording.process_started(
            pid=pid,
            argv=argv,
            cwd=cwd,
            leader=True,
            name=name,
            streams=["stdout", "stderr"],
            method=Method.PIPE,
        )
        return RecordedProcess(
            number,
            self._recording.stream(number, Stream.STDOUT, Method.PIPE),
            self._recording.stream(number, Stream.STDERR, Method.PIPE),
        )

    def could_not_start(
        self, name: str, argv: Sequence[str], cwd: str, *, reason: str, code: int
    ) -> None:
        """A step or the foreground was not there to be run."""
        number = self._recording.process_started(
            pid=0,
            argv=argv,
            cwd=cwd,
            leader=True,
            name=name,
            method=Method.PIPE,
            start_failed=reason,
        )
        self._exited(number, start_failed(code), 0)

    def ended(self, process: RecordedProcess, ending: Ending) -> None:
        """A step or the foreground has ended; what it wrote has been fed to its streams."""
        duration = int((time.monotonic() - process.started_at) * 1e6)
        self._exited(process.number, ending, duration)

    def signal_sent(
        self, name: str, *, target: str, reason: str, process: Optional[RecordedProcess] = None
    ) -> None:
        """A signal went to a process group or to everything."""
        number = process.number if process else 0
        meta = {"signal": name, "target": target, "reason": reason}
        self._recording.event(Kind.SIGNAL_SENT, meta, process=number)

    def reported(self, told: Dict[str, Any]) -> bool:
        """A call of the control plane is about to do something; False: that finds no room."""
        kind = told.pop("event", None)
        return self.port_connected(kind, told) if kind in _FORWARDS else self.file_accessed(told)

    def port_connected(self, kind: str, told: Dict[str, Any]) -> bool:
        """A connection to a port of the workspace begins or has ended.

        False: there is no room for one that begins. The end of what has begun is always recorded.
        """
        if kind == "forwardOpened" and not self._writer.room():
            return False
        meta = {name: self._masked(value) for name, value in told.items()}
        return self._recording.event(_FORWARDS[kind], meta, method=Method.PROXY)

    def file_accessed(self, told: Dict[str, Any]) -> bool:
        """The control plane is about to access the workspace's files; False: that finds no room.

        A change is durable when this returns. That one which was begun has failed always is
        recorded.
        """
        meta = {name: self._masked(value) for name, value in told.items()}
        taken = self._writer.append(
            Kind.FILE_ACCESSED,
            method=Method.INTERNAL,
            confidence=Confidence.OBSERVED,
            meta=encode_meta(meta),
            always="failed" in told,
        )
        if taken and told.get("action") not in ("read", "stat", "list", "pack"):
            self._writer.sync()
        return taken

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._recording.mask_text(value)
        # Bytes that are no UTF-8.
        if isinstance(value, dict) and isinstance(value.get("base64"), str):
            try:
                return text_of(self._recording.masker.mask(base64.b64decode(value["base64"])))
            except ValueError:
                return ""
        return value

    def end(self, reason: str, ending: Optional[Ending]) -> None:
        """Nothing runs any more. Seals the record, or leaves it for the next life."""
        if not self._config.record.restart:
            self._tell("stopped")
            self._recording.seal(reason, ending)
            return
        self._recording.close_streams()
        totals = self._recording.totals()
        self.state("stopped", totals={"reason": reason, "exit": ending, **totals})
        self._writer.close()
        self._markers.add(RECORD_LEFT)

    # ------------------------------------------------------------ the loop

    def accepts(self) -> bool:
        """Whether the pipes of programs may be read now."""
        return self._recording.accepts()

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next."""
        return self._recording.deadline()

    def tick(self) -> None:
        """Write what has been gathered for long enough."""
        self._recording.tick()

    # ------------------------------------------------------------ details

    def _record_start(self, boot_id: str, account: Account) -> None:
        record = self._config.record
        self._recording.event(
            Kind.RECORD_STARTED,
            {
                "version": 1,
                "runId": self._config.run_id,
                "spoolId": self._writer.spool_id,
                "mode": "boot",
                "workspaceId": self._config.workspace_id,
                "bootId": boot_id,
                "policy": record.policy,
                "limits": {
                    "spoolBytes": record.spool_bytes,
                    "segmentBytes": record.segment_bytes,
                },
                "redaction": {"values": self._recording.masker.values, "shapes": True},
                "input": record.input,
                "isolated": account.uid != 0 and not self._config.sudo,
                "coverage": _coverage(record),
            },
        )

    def _exited(self, number: int, ending: Ending, duration_us: int) -> None:
        self._recording.process_exited(
            number,
            code=ending["code"],
            signal=ending["signal"],
            reason=ending["reason"],
            duration_us=duration_us,
            method=Method.PIPE,
        )

    def _end_lost(self) -> None:
        reason = "the recorder was killed: what ran then, and what it wrote last, is not known"
        for state in ("off", "on"):
            meta = {"source": "io", "state": state, "reason": reason}
            self._recording.event(Kind.COVERAGE_CHANGED, meta)
        # Steps run one after the other, so only the latest can have been running.
        summary = self._writer.summary
        if summary.leader and summary.exit is None:
            self._exited(summary.leader, ending_of(None), 0)


def _open(config: Config, runs_root: str) -> SpoolWriter:
    record, run_id = config.record, config.run_id
    limits = SpoolLimits(record.spool_bytes, record.segment_bytes)
    try:
        return SpoolWriter.create(runs_root, run_id, limits, "boot")
    except SpoolExists:
        pass
    try:
        writer = SpoolWriter.reopen(runs_root, run_id, limits)
    except SpoolMissing:
        raise RecordError("the record of this run has ended and was taken over") from None
    except SpoolBusy:
        raise RecordError("somebody else writes the record of this run") from None
    if writer.sealed:
        writer.close()
        raise RecordError("the record of this run has ended")
    return writer


class _BootRecording(Recording):
    """Its totals are those of all lives of the record."""

    def totals(self) -> Dict[str, Any]:
        return self.writer.summary.totals()

    def close_streams(self) -> None:
        """Nobody reads any longer; what still finds no room is dropped and named."""
        self._gave_up = True
        for stream in list(self._open):
            stream.close("abandoned")


def _coverage(record: Record) -> Dict[str, Any]:
    off = {"state": "off", "method": "none"}
    unwatched = "not observed during boot"
    return {
        "io": {"state": "on", "method": "pipe"},
        "processes": {
            "state": "limited",
            "method": "none",
            "reason": "only the processes that the boot itself starts",
        },
        "files": {**off, "reason": unwatched},
        "network": {**off, "reason": unwatched},
        "input": {**off, "reason": "a boot has no input"},
    }
