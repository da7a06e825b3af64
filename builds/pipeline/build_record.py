"""The part of a boot run's record that the build worker writes: what was built, and its output.

Its source is ``build:<job>:<attempt count>``, so a worker that takes a job over begins a source of
its own, and the record says of a killed one that its end is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import structlog

from builds.pipeline.job_slots import BuildSlotNeeded
from builds.pipeline.program_record import OUTPUT_LIMIT, ProgramRecord
from builds.pipeline.source_writer import SourceWriter
from controlplane.database.retries import DATABASE_RETRY_SECONDS
from runs.agent.masking.masker import Masker
from runs.agent.record.frames import Kind, Method
from runs.models import Run
from workspaces.models import BuildJob

log = structlog.get_logger(__name__)

_COVERAGE = {
    "processes": {
        "state": "limited",
        "method": "pipe",
        "reason": "of a build, the programs that the build worker starts",
    },
    "io": {"state": "on", "method": "pipe"},
    "files": {"state": "off", "method": "none", "reason": "not observed during a build"},
    "network": {"state": "off", "method": "none", "reason": "not observed during a build"},
    "input": {"state": "off", "method": "none", "reason": "a build has no input"},
}


@contextmanager
def recording(
    run: Run,
    job: BuildJob,
    secrets: Iterable[bytes],
    *,
    cancelled: threading.Event,
) -> Iterator[BuildRecord]:
    """Record a build in its boot run for the block, and tell its end whatever happens.

    Raises when the end cannot be stored although the block went well.
    """
    record = BuildRecord(run, job, list(secrets), cancelled=cancelled)
    try:
        yield record
        if not record.is_closed:
            record.close("stopped")
    except BuildSlotNeeded:
        record.state("An image has to be built: waiting for a build slot.")
        record.close("stopped")
        raise
    except BaseException:
        try:
            record.close("failed")
        except Exception as exc:
            log.warning("build_record_not_ended", reason=type(exc).__name__)
        raise


class BuildRecord:
    """The record of one build. Its methods may be called from one thread at a time.

    It opens before the first program starts, or with its end where none does, while the job's
    lease is this worker's or nobody else's: who was cancelled may still tell what there was, and
    who was followed by another worker may not.
    """

    def __init__(
        self, run: Run, job: BuildJob, secrets: Sequence[bytes], *, cancelled: threading.Event
    ) -> None:
        self._run = run
        self._secrets = list(secrets)
        self._masker = Masker(self._secrets)
        self._source_id = f"build:{job.pk}:{job.attempt_count}"
        self._programs: list[ProgramRecord] = []
        self._has_told_its_end = False
        self.is_closed = False
        """Whether everything is stored."""
        self._writer = SourceWriter(
            run.number,
            self._source_id,
            timeout=DATABASE_RETRY_SECONDS,
            cancelled=cancelled,
            require=partial(BuildJob.objects.lock_held, job.fence),
            on_tick=self._tick,
        )
        self._begin()

    def hide(self, secret: str) -> None:
        """Mask one more secret in everything that is told from now on."""
        self._secrets.append(secret.encode())
        self._masker = Masker(self._secrets)

    def _begin(self) -> None:
        self._writer.event(
            Kind.RECORD_STARTED,
            {
                "version": 1,
                "runId": str(self._run.pk),
                "spoolId": self._source_id,
                "mode": "build",
                "workspaceId": str(self._run.workspace_id),
                "policy": "block",
                "limits": {"streamBytes": OUTPUT_LIMIT},
                "redaction": {"values": self._masker.values, "shapes": True},
                "input": "off",
                "isolated": True,
                "coverage": _COVERAGE,
            },
        )

    def state(self, message: str) -> None:
        """Tell where the build is."""
        self._writer.event(
            Kind.RUNTIME_STATE_CHANGED, {"state": "starting", "message": self._text(message)}
        )
        self._writer.wait_for_room()

    def started(
        self, name: str, argv: Sequence[str], streams: Sequence[str] = ("stdout", "stderr")
    ) -> ProgramRecord:
        """Tell of a program that is started now; raises what keeps it from the record."""
        self._writer.go_live()
        # What cannot be recorded is not started, and then it is not in the record as lost.
        self._writer.wait_for_room()
        number = len(self._programs) + 1
        self._writer.event(
            Kind.PROCESS_STARTED,
            {
                "leader": True,
                "name": name,
                "argv": [self._text(word) for word in argv],
                "streams": list(streams),
            },
            process=number,
            method=Method.PIPE,
        )
        program = ProgramRecord(self._writer, self._masker, number, streams)
        self._programs.append(program)
        return program

    @contextmanager
    def step(self, name: str, argv: Sequence[str]) -> Iterator[None]:
        """Tell of a program whose output is not recorded; the block is its life."""
        program = self.started(name, argv, streams=())
        try:
            yield
        except BaseException:
            program.exited(None, None, "lost")
            raise
        program.exited(0, None, "exited")

    def close(self, state: str, beforehand: Callable[[], None] | None = None) -> None:
        """Tell that everything was told, with the totals; raise when that cannot be stored.

        What ``beforehand`` writes is of the same transaction. What it raises keeps the end from
        being stored; closed again without it, the record ends as it would have with it.
        """
        with self._writer.lock:
            if not self._has_told_its_end:
                self._tell_end(state)
        self._writer.close(beforehand)
        self.is_closed = True

    def _tell_end(self, state: str) -> None:
        self._has_told_its_end = True
        for program in self._programs:
            program.ended(None)
        streams = [total for program in self._programs for total in program.totals()]
        totals = {"processes": len(self._programs), "streams": streams}
        self._writer.event(Kind.RUNTIME_STATE_CHANGED, {"state": state, "totals": totals})

    def _tick(self) -> None:
        for program in self._programs:
            program.tick()

    def _text(self, text: str) -> str:
        masked = self._masker.mask(text.encode("utf-8", "surrogateescape"))
        return masked.decode("utf-8", "replace")
