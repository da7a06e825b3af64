"""Execs: a command that somebody waits for, or not. Each one is a one-shot run.

The workers are told of it with the commit that makes it, and by a message of the queue a moment
later, unless it has ended by then: who waits for a command does not wait for the broker, nor for
what a message costs.
"""

from __future__ import annotations

import base64
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from controlplane.http.idempotency import key_reused
from controlplane.work.notifications import announce
from runs.agent.record.frames import Stream
from runs.exec.serializers import OUTPUT_BYTES
from runs.exec.waiting import Ending
from runs.models import Run, RunRequest
from runs.record.reading.beginnings import Output, beginnings
from runs.run_messages import QUEUED, announce_run_later, withdraw_run
from runs.services import NewRun, store_run


@dataclass(frozen=True, slots=True)
class StartedExec:
    """The run of an exec, perhaps of an earlier request with the same key."""

    run: Run
    replayed: bool
    ending: Ending


def start_exec(new_run: NewRun, *, key: str | None, request_hash: str) -> StartedExec:
    """Store the run of an exec, and have it executed.

    Raises ``OwnerLimitReached``, ``Conflict`` (``idempotency-key-reused``) and
    ``ServiceUnavailable`` (``record-signing-key-unset``). A crash leaves a queued run, which any
    run worker's sweeper finds.
    """
    owner = new_run.owner_user_id
    if key is not None and (earlier := _earlier(owner, key, request_hash)) is not None:
        return earlier
    try:
        with ExitStack() as on_failure:
            with transaction.atomic():
                run = store_run(new_run)
                # From before anybody can execute it.
                ending = Ending(run)
                on_failure.callback(ending.close)
                if key is not None:
                    RunRequest.objects.create(
                        owner_user_id=owner, key=key, request_hash=request_hash, run=run
                    )
                announce(QUEUED, str(run.pk))
            on_failure.pop_all()
    except IntegrityError:
        # Another request with this key was quicker by a moment.
        earlier = _earlier(owner, key or "", request_hash)
        if earlier is None:
            raise
        return earlier
    announce_run_later(run.pk)
    return StartedExec(run, replayed=False, ending=ending)


def _earlier(owner_user_id: str, key: str, request_hash: str) -> StartedExec | None:
    rows = RunRequest.objects.select_related("run")
    earlier = rows.filter(owner_user_id=owner_user_id, key=key).first()
    if earlier is None:
        return None
    if earlier.request_hash != request_hash:
        raise key_reused()
    ending = Ending(earlier.run)
    earlier.run.refresh_from_db()
    return StartedExec(earlier.run, replayed=True, ending=ending)


# ---------------------------------------------------------------- waiting

SOON_SECONDS = 1.0
_places = threading.BoundedSemaphore(max(1, settings.SVC_API_THREADS // 2))


def ended_soon(started: StartedExec) -> bool:
    """Wait a moment for the end of an exec, unless half of the threads do so already."""
    places = _places
    if not places.acquire(blocking=False):
        return started.run.status in Run.TERMINAL
    try:
        has_ended = started.ending.wait(SOON_SECONDS)
    finally:
        places.release()
    if has_ended:
        withdraw_run(started.run.pk)
    return has_ended


# ---------------------------------------------------------------- the answer


def answer_of(run: Run, *, wrote_nothing: bool = False) -> dict[str, Any]:
    """Return the members of the answer about a run that has ended.

    ``wrote_nothing``: it has no output, so that none is looked for.
    """
    found = {} if wrote_nothing else beginnings(run.number, limit=OUTPUT_BYTES)
    stdout, stderr = (found.get(each, Output()) for each in (Stream.STDOUT, Stream.STDERR))
    return {
        "run_id": run.pk,
        "workspace_id": run.workspace_id,
        "status": run.status,
        "exit_code": run.exit_code,
        "exit_signal": run.exit_signal or None,
        "error_code": run.error_code or None,
        "error_message": run.error_message or None,
        **_members("stdout", stdout),
        **_members("stderr", stderr),
        "truncated": not (stdout.whole and stderr.whole),
    }


def unknown_answer_of(run: Run) -> dict[str, Any]:
    """Return the members of the answer about a run of which nothing more is known than its row."""
    return {
        "run_id": run.pk,
        "workspace_id": run.workspace_id,
        "status": run.status,
        "stdout": "",
        "stderr": "",
        "truncated": True,
    }


def _members(name: str, output: Output) -> dict[str, str]:
    try:
        return {name: output.content.decode()}
    except UnicodeDecodeError:
        return {
            name: output.content.decode(errors="replace"),
            f"{name}_base64": base64.b64encode(output.content).decode(),
        }
