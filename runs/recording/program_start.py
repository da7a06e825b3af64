"""Starting one-shot runs: what the agent in the workspace is told, and what its answer means.

The agent keeps one folder for each run that it ever started, so telling it twice starts nothing
twice. That folder belongs to the workspace, whose root may delete it: once the agent has answered,
the record knows its spool, and the agent is told never again. The codes a run that was not started
fails with:

======================  ==========================================================================
``command-refused``     the agent does not accept the command
``input-unopened``      its env and stdin were sealed with a key that this worker does not have
``record-refused``      the run cannot be recorded in the workspace (no room), so it is not started
``workspace-gone``      the workspace's container ended or was removed before the run was started
======================  ==========================================================================
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass
from typing import Any

from controlplane.errors import JobError
from controlplane.security.crypto import SealError
from runs.models import Run
from runs.record.ingest import meta as metas
from runs.recording.tail_channel import NOT_OURS
from runs.run_input import open_input
from workspaces.runtimes.base import RuntimeAdapter

SPEC_REFUSED = 2
CANNOT_BE_RECORDED = 3
CALL_SECONDS = 20.0
MESSAGE_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """How runs are recorded and how long they may take; see ``deploy/README.md``, "Runs"."""

    policy: str
    input: str
    spool_bytes: int
    segment_bytes: int
    patch_bytes: int
    max_files: int
    time_seconds: float
    grace_seconds: float


class StartUnknownError(Exception):
    """The agent's answer is not to be understood: it may be told again."""


def time_limit_seconds(run: Run, limits: RecordLimits) -> float:
    """Return how long the run may take."""
    return limits.time_seconds if run.time_limit_ms is None else run.time_limit_ms / 1000


def exec_spec(run: Run, limits: RecordLimits) -> dict[str, Any]:
    """Return what ``agent exec`` is told of the run (``runs/agent/README.md`` describes it).

    Raises ``JobError`` (``input-unopened``).
    """
    command = run.command or {}
    try:
        given = open_input(run.sealed_input, run_id=run.pk)
    except SealError as exc:
        raise JobError(
            "input-unopened",
            "What env and stdin hold was sealed with another SVC_RECORD_SIGNING_KEY than the run "
            "worker has.",
        ) from exc
    return {
        "version": 1,
        "runId": str(run.pk),
        "argv": [command["executable"], *command.get("args", ())],
        "cwd": command.get("cwd"),
        "env": given.env,
        "stdin": None if given.stdin is None else base64.b64encode(given.stdin.encode()).decode(),
        "timeSeconds": time_limit_seconds(run, limits),
        "graceSeconds": limits.grace_seconds,
        "secrets": [],
        "record": {
            "policy": limits.policy,
            "input": limits.input,
            "spoolBytes": limits.spool_bytes,
            "segmentBytes": limits.segment_bytes,
            "files": True,
            "network": True,
            "processes": True,
            "patchBytes": limits.patch_bytes,
            "maxFiles": limits.max_files,
        },
    }


def start(adapter: RuntimeAdapter, run: Run, limits: RecordLimits) -> str | None:
    """Have the agent start the run, unless it has already; return the spool that it is recorded in.

    None when the answer names none. Raises ``JobError`` when the run was not and will not be
    started, ``LaunchError`` when the runtime cannot be spoken to, ``StartUnknownError`` when nobody
    knows.
    """
    assert run.attempt is not None
    spec = json.dumps(exec_spec(run, limits)).encode()
    answer = adapter.call_agent(run.attempt.run_id, ["exec"], stdin=spec, timeout=CALL_SECONDS)
    if answer.exit_code == SPEC_REFUSED:
        raise JobError("command-refused", _message(answer.stdout, answer.stderr))
    if answer.exit_code == CANNOT_BE_RECORDED:
        raise JobError("record-refused", _message(answer.stdout, answer.stderr))
    if answer.exit_code != 0:
        raise StartUnknownError(f"exit {answer.exit_code}: {answer.stderr[-500:]!r}")
    try:
        return str(uuid.UUID(json.loads(answer.stdout)["spoolId"]))
    except NOT_OURS:
        return None


def _message(stdout: bytes, stderr: bytes) -> str:
    try:
        said = metas.text(json.loads(stdout)["message"], MESSAGE_LENGTH)
    except (ValueError, KeyError, TypeError, RecursionError):
        said = ""
    said = said or metas.text(stderr[-MESSAGE_LENGTH:].decode(errors="replace").strip())
    return said or "The agent gave no reason."
