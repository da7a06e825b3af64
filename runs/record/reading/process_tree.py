"""Who began a session and what a run started on purpose, for people to look at.

A session is one connection; each channel of it that runs something is a process that leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from runs.agent.record.frames import Kind, Stream
from runs.models import Run, RunEvent, RunProcess
from runs.record.ingest import meta as metas
from runs.record.reading.summaries import command_line, exit_line, one_line, origin_line, text

SHOWN = 200


@dataclass(frozen=True, slots=True)
class Leader:
    """A process that leads, as a page shows it. ``exit`` is empty while it goes on."""

    number: int
    channel: str
    kind: str
    command: str
    terminal: bool
    started_at: datetime | None
    exit: str


def origin(run: Run) -> str:
    """Return who began a session, from where and with what; empty when the record does not say."""
    started = RunEvent.objects.filter(run_number=run.number, kind=Kind.RECORD_STARTED)
    meta = started.order_by("sequence").values_list("meta", flat=True).first()
    told = metas.read(bytes(meta or b"")).get("origin")
    return one_line(origin_line(told)) if isinstance(told, dict) else ""


def leaders(run: Run) -> tuple[Sequence[Leader], int]:
    """Return the first processes that lead, and how many more there are."""
    rows = RunProcess.objects.filter(run_number=run.number, leader=True)
    shown = list(rows.order_by("process_number")[:SHOWN])
    more = rows.count() - SHOWN if len(shown) == SHOWN else 0
    channels = _channels(run, shown) if run.mode == Run.Mode.INTERACTIVE else {}
    return [_leader(row, *channels.get(row.process_number, ("", row.name))) for row in shown], more


def _channels(run: Run, rows: Sequence[RunProcess]) -> dict[int, tuple[str, str]]:
    """Return channel and kind of each process, as the first event of it tells them."""
    events = RunEvent.objects.filter(
        run_number=run.number,
        kind=Kind.PROCESS_STARTED,
        process_number__in=[row.process_number for row in rows],
    ).order_by("-sequence")
    found = {}
    for number, meta in events.values_list("process_number", "meta")[: 2 * SHOWN]:
        told = metas.read(bytes(meta))
        found[number] = tuple(
            one_line(text(told[name])) if told.get(name) is not None else ""
            for name in ("channel", "kind")
        )
    return {number: (channel, kind) for number, (channel, kind) in found.items()}


def _leader(row: RunProcess, channel: str, kind: str) -> Leader:
    told = {"code": row.exit_code, "signal": row.exit_signal, "reason": row.exit_reason}
    return Leader(
        number=row.process_number,
        channel=channel,
        kind=kind,
        command=one_line(command_line(row.argv)),
        terminal=Stream.PTY_OUTPUT in row.streams,
        started_at=_moment(row.started_us),
        exit="" if row.ended_us is None else one_line(exit_line(told)),
    )


def _moment(microseconds: int | None) -> datetime | None:
    try:
        return datetime.fromtimestamp((microseconds or 0) / 1e6, UTC) if microseconds else None
    except (OverflowError, ValueError, OSError):
        return None
