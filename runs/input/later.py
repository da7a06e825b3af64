"""Input for running programs: taken here, handed over by the worker that records the run.

What is taken is committed with its place in the input before it is answered, and the agent knows
how far it is: so every byte reaches the program once, whoever dies on the way.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Count, Sum

from controlplane.errors import Conflict, ServiceUnavailable
from controlplane.work.notifications import announce
from runs.models import Run, RunInput, RunInputHead
from runs.run_messages import INPUT

WAITING_BYTES = 4 * 1024 * 1024
"""So much may wait for a program that does not read."""
WAITING_PIECES = 4096
"""Nor may it be in more pieces than this."""
HANDED_BYTES = 1024 * 1024
RETRY_SECONDS = 1


def give_input(run: Run, values: Mapping[str, Any]) -> RunInputHead:
    """Take input for a run: a size, bytes, their end, a signal, in this order; any of them.

    Raises ``Conflict`` (``run-ended``, ``input-not-open``, ``input-ended``, ``input-gap``,
    ``not-a-terminal``), and ``ServiceUnavailable`` (``input-full``).
    """
    _require_taker(run, values)
    with transaction.atomic():
        head = _head(run)
        items = _items(head, values)
        if items:
            _require_room(run, items)
            _forget_overtaken(run, items)
            RunInput.objects.bulk_create(
                RunInput(
                    run=run,
                    position=head.last_position + number,
                    size=int(item.pop("size", 0)),
                    detail=item,
                )
                for number, item in enumerate(items, 1)
            )
            head.last_position += len(items)
            head.save()
            announce(INPUT, str(run.pk))
    return head


def _require_taker(run: Run, values: Mapping[str, Any]) -> None:
    if run.status in Run.TERMINAL:
        raise Conflict("The run has ended.", code="run-ended")
    command = run.command or {}
    if not run.recorded or run.mode != Run.Mode.ONE_SHOT:
        raise Conflict("A run of this kind takes no input.", code="input-not-open")
    if not command.get("moreInput") and set(values) - {"signal"}:
        raise Conflict(
            "The input of this run was closed when it started; start runs with openStdin to send "
            "more.",
            code="input-not-open",
        )
    if "resize" in values and "terminal" not in command:
        raise Conflict("The run has no terminal.", code="not-a-terminal")


def _head(run: Run) -> RunInputHead:
    """Return where the input stands, locked."""
    first = (run.command or {}).get("stdinBytes", 0)
    RunInputHead.objects.bulk_create([RunInputHead(run=run, received=first)], ignore_conflicts=True)
    return RunInputHead.objects.select_for_update().get(pk=run.pk)


def _items(head: RunInputHead, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the agent is to be told, and move the head behind it."""
    items: list[dict[str, Any]] = []
    if "resize" in values:
        items.append({"kind": "resize", **values["resize"]})
    data = _bytes(values)
    offset = values.get("offset", head.received)
    if offset > head.received:
        error = Conflict("Bytes before these are missing.", code="input-gap")
        error.members["offset"] = head.received
        raise error
    data = data[head.received - offset :]
    if data:
        if head.ended:
            raise Conflict("The input was already closed.", code="input-ended")
        told = base64.b64encode(data).decode()
        items.append({"kind": "bytes", "offset": head.received, "data": told, "size": len(data)})
        head.received += len(data)
    if values.get("end") and not head.ended:
        items.append({"kind": "end"})
        head.ended = True
    if "signal" in values:
        items.append({"kind": "signal", "signal": values["signal"]})
    return items


def _bytes(values: Mapping[str, Any]) -> bytes:
    if "stdin_base64" in values:
        return base64.b64decode(values["stdin_base64"])
    return str(values.get("stdin", "")).encode()


def _require_room(run: Run, items: list[dict[str, Any]]) -> None:
    more = sum(int(item.get("size", 0)) for item in items)
    if not more:
        return
    waiting = RunInput.objects.filter(run=run, size__gt=0).aggregate(
        size=Sum("size"), pieces=Count("position")
    )
    if (waiting["size"] or 0) + more > WAITING_BYTES or waiting["pieces"] >= WAITING_PIECES:
        error = ServiceUnavailable("The program is not reading its input.", code="input-full")
        error.wait = RETRY_SECONDS
        raise error


def _forget_overtaken(run: Run, items: list[dict[str, Any]]) -> None:
    """Let a size replace the one that waits, and a signal wait once, as signals of a kernel do."""
    waiting = RunInput.objects.filter(run=run)
    for item in items:
        if item["kind"] == "resize":
            waiting.filter(detail__kind="resize").delete()
        elif item["kind"] == "signal":
            waiting.filter(detail__kind="signal", detail__signal=item["signal"]).delete()


# ---------------------------------------------------------------- handing it over


@dataclass(frozen=True, slots=True)
class WaitingInput:
    """What the agent is to be told next."""

    items: list[dict[str, Any]]
    """In their order: about a MiB, and of what comes behind that every signal and the size."""
    through: int
    """Up to this position they are all that waits."""


def waiting_input(run: Run) -> WaitingInput:
    """Return what the agent is to be told next; signals and sizes overtake what is too much."""
    found: list[dict[str, Any]] = []
    size = through = 0
    rows = RunInput.objects.filter(run=run).order_by("position")
    for row in rows.iterator(chunk_size=50):
        if row.size and size and size + row.size > HANDED_BYTES:
            overtaking = rows.filter(
                position__gt=row.position, detail__kind__in=["signal", "resize"]
            )
            found += [_told(each) for each in overtaking]
            break
        size += row.size
        through = row.position
        found.append(_told(row))
    return WaitingInput(found, through)


def _told(row: RunInput) -> dict[str, Any]:
    return {"position": row.position, **row.detail}


def runs_with_input(run_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return those of some runs for whose programs something waits."""
    if not run_ids:
        return set()
    waiting = RunInput.objects.filter(run_id__in=run_ids)
    return set(waiting.values_list("run_id", flat=True).distinct())


def handed_over(run: Run, position: int) -> None:
    """Forget what the agent has."""
    RunInput.objects.filter(run=run, position__lte=position).delete()


def forget_left_input() -> int:
    """Forget what is left of runs whose worker died at their end; return how much that was."""
    return RunInput.objects.filter(run__status__in=Run.TERMINAL).delete()[0]


def forget_input(run: Run) -> None:
    """Forget what a run that has ended did not take."""
    RunInput.objects.filter(run=run).delete()
