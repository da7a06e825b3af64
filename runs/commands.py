"""What a run needs to know of the workspace it is to be executed in: is it ready, and with what.

A prompt becomes the one-shot command of the harness; the planner knows the harnesses, which is why
this is here and not in ``runs``.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any

from controlplane.errors import Fault, NotFound, ValidationFailed
from controlplane.spelling import suggestion
from runs.input.sealed import StartInput
from runs.models import Run
from runs.services import NewRun
from workspaces.harnesses import HARNESSES
from workspaces.lifecycle.attempt_states import find_ready, require_ready
from workspaces.models import Attempt, Workspace
from workspaces.services import get_workspace

CUSTOM = "custom"


def new_run(*, owner_user_id: str, values: Mapping[str, Any], from_gateway: bool) -> NewRun:
    """Return the run that the members of a request ask for.

    A one-shot run with a command or a prompt is executed. An interactive run is recorded when the
    gateway asks for it, which then opens the session. Both need a workspace that is ready.

    Raises ``NotFound`` (``workspace-not-found``, ``attempt-not-found``), ``ValidationFailed``, or
    ``Conflict`` (``workspace-not-ready``).
    """
    workspace = get_workspace(values["workspace_id"], owner_user_id=owner_user_id)
    attempt = _attempt(workspace, values.get("attempt_id"))
    mode = Run.Mode(values["mode"])
    one_shot = mode == Run.Mode.ONE_SHOT
    executed = one_shot and ("command" in values or "prompt" in values)
    command = _command(values, attempt, executed=executed)
    recorded = executed or (mode == Run.Mode.INTERACTIVE and from_gateway)
    if recorded:
        require_ready(attempt)
    return NewRun(
        workspace=workspace,
        attempt=attempt if recorded or "attempt_id" in values else None,
        owner_user_id=owner_user_id,
        harness_id=values["harness_id"],
        mode=mode,
        recorded=recorded,
        prompt=values.get("prompt", ""),
        command=command,
        given=_given(values),
        time_limit_ms=values.get("time_limit_ms"),
    )


def new_exec(
    workspace_id: uuid.UUID, *, owner_user_id: str | None, values: Mapping[str, Any]
) -> NewRun:
    """Return the one-shot run that an exec in a workspace is.

    Raises ``NotFound`` (``workspace-not-found``) and ``Conflict`` (``workspace-not-ready``).
    """
    attempt = find_ready(workspace_id, owner_user_id=owner_user_id)
    if attempt is None:
        workspace = get_workspace(workspace_id, owner_user_id=owner_user_id)
        attempt, _ = require_ready(_attempt(workspace, None))
    else:
        workspace = attempt.workspace
    executable, *args = values["command"]
    given = _given(values)
    members: dict[str, Any] = {"cwd": values["cwd"]} if "cwd" in values else {}
    if values["open_stdin"]:
        members |= {"moreInput": True, "stdinBytes": len(given.stdin or b"")}
    if "terminal" in values:
        members["terminal"] = dict(values["terminal"])
    if not values["changes"]:
        members["changes"] = False
    return NewRun(
        workspace=workspace,
        attempt=attempt,
        owner_user_id=workspace.owner_user_id,
        harness_id=attempt.spec["harness"]["id"],
        mode=Run.Mode.ONE_SHOT,
        recorded=True,
        command={"executable": executable, "args": args, **members},
        given=given,
        time_limit_ms=values.get("time_limit_ms"),
    )


def _given(values: Mapping[str, Any]) -> StartInput:
    """Return what a run begins with: its variables, and what it reads at first."""
    stdin = None
    if "stdin_base64" in values:
        stdin = base64.b64decode(values["stdin_base64"])
    elif "stdin" in values:
        stdin = values["stdin"].encode()
    return StartInput(values.get("env", {}), stdin)


def _attempt(workspace: Workspace, attempt_id: uuid.UUID | None) -> Attempt | None:
    """Return the attempt that is named, or the workspace's latest one."""
    attempts = Attempt.objects.filter(workspace=workspace)
    if attempt_id is None:
        return attempts.order_by("-pk").first()
    attempt = attempts.filter(pk=attempt_id).first()
    if attempt is None:
        raise NotFound("The workspace has no such attempt.", code="attempt-not-found")
    return attempt


def _command(
    values: Mapping[str, Any], attempt: Attempt | None, *, executed: bool
) -> dict[str, Any] | None:
    """Return ``{executable, args, cwd?}``; None when there is nothing to execute."""
    if not executed:
        _refuse_members_of_executions(values)
        return dict(values["command"]) if "command" in values else None
    if "command" in values:
        return dict(values["command"])
    executable, *args = harness_command(values["harness_id"], values["prompt"], attempt)
    return {"executable": executable, "args": args}


def _refuse_members_of_executions(values: Mapping[str, Any]) -> None:
    members = {"env": "env", "stdin": "stdin", "time_limit_ms": "timeLimitMs"}
    detail = "Only a one-shot run with a command or a prompt can be executed."
    faults = [
        Fault("not-executed", detail, pointer=f"/{wire}")
        for name, wire in members.items()
        if name in values
    ]
    if faults:
        raise ValidationFailed(faults)


def harness_command(harness_id: str, prompt: str, attempt: Attempt | None) -> list[str]:
    """Return the command that runs one prompt with a harness.

    ``custom``, and any other name that is not built in, is the harness that the workspace's
    blueprint describes. Raises ``ValidationFailed`` for a harness that there is not.
    """
    harness = (attempt.spec if attempt else {}).get("harness", {})
    known = HARNESSES.get(harness_id)
    if known is not None:
        is_restricted = known.read_only and harness.get("rights") == "read-only"
        command = known.read_only if is_restricted else known.one_shot
        # What begins with a dash would be read as an option, and options may undo safeguards.
        return [*command, *(["--"] if prompt.startswith("-") else []), prompt]
    if harness.get("id") == CUSTOM:
        return [*harness["command"], prompt]
    names = [*HARNESSES, CUSTOM]
    detail = (
        "The workspace's blueprint describes no custom harness."
        if harness_id == CUSTOM
        else f"A prompt needs one of {', '.join(names)}, a command, or a blueprint that describes "
        "its "
        f"own harness.{suggestion(harness_id, names)}"
    )
    raise ValidationFailed([Fault("not-allowed", detail, pointer="/harnessId")])
