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
import struct
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from controlplane.errors import JobError
from controlplane.security.crypto import SealError
from runs.input.sealed import open_input
from runs.models import Run
from runs.record.ingest import meta as metas
from runs.recording.tail_channel import NOT_OURS, TailChannel
from workspaces.runtimes.base import AgentChannel, LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

SPEC_REFUSED = 2
CANNOT_BE_RECORDED = 3
CALL_SECONDS = 20.0
MESSAGE_LENGTH = 2000
ANSWER_BYTES = 64 * 1024

_LENGTH = struct.Struct("!I")


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
            "env and stdin were sealed with a different SVC_RECORD_SIGNING_KEY than the run "
            "worker's.",
        ) from exc
    return {
        "version": 1,
        "runId": str(run.pk),
        "argv": [command["executable"], *command.get("args", ())],
        "cwd": command.get("cwd"),
        "env": given.env,
        "stdin": None if given.stdin is None else base64.b64encode(given.stdin).decode(),
        **_more(command),
        "timeSeconds": time_limit_seconds(run, limits),
        "graceSeconds": limits.grace_seconds,
        "secrets": [],
        "record": {
            "policy": limits.policy,
            "input": limits.input,
            "spoolBytes": limits.spool_bytes,
            "segmentBytes": limits.segment_bytes,
            "files": command.get("changes", True),
            "network": True,
            "processes": True,
            "patchBytes": limits.patch_bytes,
            "maxFiles": limits.max_files,
        },
    }


def _more(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that only a command with open input has."""
    members: dict[str, Any] = {}
    if command.get("moreInput"):
        members["moreInput"] = True
    if "terminal" in command:
        members["pty"] = {**command["terminal"], "term": None}
    return members


@dataclass(frozen=True, slots=True)
class Started:
    """A run that the agent has started, now or before. Must be closed."""

    spool_id: str | None
    """The spool that it is recorded in; None when the answer names none."""
    channel: AgentChannel
    received: bytes

    def tail(self) -> TailChannel:
        """Follow its record from event 1; raises ``TailEndedError`` and ``FrameError``."""
        return TailChannel(self.channel, self.received)

    def close(self) -> None:
        """Give the connection up."""
        self.channel.close()


def start(adapter: RuntimeAdapter, run: Run, limits: RecordLimits) -> Started:
    """Have the agent start the run, unless it has already.

    Raises ``JobError`` when the run was not and will not be started, ``LaunchError`` when the
    runtime cannot be spoken to, ``StartUnknownError`` when nobody knows.
    """
    assert run.attempt is not None
    spec = json.dumps(exec_spec(run, limits)).encode()
    channel = adapter.open_agent(run.attempt.run_id, ["exec", "--then", "tail"])
    try:
        try:
            channel.write(_LENGTH.pack(len(spec)) + spec)
        except LaunchError:
            # It has refused already, or is gone; what it said tells which.
            log.info("spec_not_taken", run_id=str(run.pk))
        line, rest = _first_line(channel)
        return Started(_spool_of(channel, line), channel, rest)
    except BaseException:
        channel.close()
        raise


def _first_line(channel: AgentChannel) -> tuple[bytes, bytes]:
    """Return the agent's answer, which ends its output when there is no run, and what follows."""
    said = b""
    until = time.monotonic() + CALL_SECONDS
    while b"\n" not in said and len(said) <= ANSWER_BYTES:
        left = until - time.monotonic()
        more = channel.read(left) if left > 0 else None
        if more is None:
            raise LaunchError(
                "agent-silent", f"The agent in the workspace gave no answer for {CALL_SECONDS:g} s."
            )
        if not more:
            break
        said += more
    line, _, rest = said.partition(b"\n")
    return line, rest


def _spool_of(channel: AgentChannel, line: bytes) -> str | None:
    """Return which spool an answer names, if any; raise when there is no run."""
    state = spool_id = None
    try:
        answer = json.loads(line)
        state = answer["state"]
        spool_id = str(uuid.UUID(answer["spoolId"]))
    except NOT_OURS:
        pass
    if state in ("started", "exists"):
        return spool_id
    code = channel.exit_code()
    if code == SPEC_REFUSED:
        raise JobError("command-refused", _message(line, channel.errors()))
    if code == CANNOT_BE_RECORDED:
        raise JobError("record-refused", _message(line, channel.errors()))
    raise StartUnknownError(f"exit {code}: {channel.errors()[-500:]!r}")


def _message(line: bytes, errors: str) -> str:
    try:
        said = metas.text(json.loads(line)["message"], MESSAGE_LENGTH)
    except (ValueError, KeyError, TypeError, RecursionError):
        said = ""
    said = said or metas.text(errors[-MESSAGE_LENGTH:].strip())
    return said or "The agent gave no reason."
