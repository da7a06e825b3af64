"""What a launch needs to know: the agent's boot configuration out of a blueprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from workspaces.blueprint import Blueprint, CommandForeground, Step
from workspaces.models import Attempt
from workspaces.runtimes.base import Volume

DOTFILES_PATH = "/usr/share/svc/dotfiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLimits:
    """How long steps may take and how much of their output a failure keeps."""

    step_seconds: float
    grace_seconds: float
    tail_bytes: int = 8192
    credential_seconds: float = 300.0


def boot_configuration(
    attempt: Attempt,
    blueprint: Blueprint,
    *,
    user: str,
    home: str,
    shell: str,
    harness_command: Sequence[str],
    limits: BootLimits,
    credentials: bool = False,
) -> Mapping[str, object]:
    """Return ``/etc/svc/boot.json`` of the attempt (``runs/agent/README.md`` describes it).

    With ``credentials`` the boot waits until it is given some.
    """
    runtime = blueprint.runtime
    customization = blueprint.customization
    foreground = blueprint.lifecycle.startup.foreground
    has_dotfiles = customization.apply_dotfiles and any(
        source.purpose == "dotfiles" for source in blueprint.sources.inputs
    )
    return {
        "version": 1,
        "runId": str(attempt.run_id),
        "workspaceId": str(attempt.workspace_id),
        "attemptId": str(attempt.pk),
        "user": user,
        "home": home,
        "shell": shell,
        "sudo": customization.sudo,
        "workspaceRoot": runtime.workspace_root,
        "workingDirectory": runtime.working_directory,
        "env": dict(runtime.env),
        "dotfiles": {
            "path": DOTFILES_PATH,
            "manager": customization.dotfiles_manager,
            "target": customization.dotfiles_target,
            "bootstrap": customization.dotfiles_bootstrap,
            "bootstrapCommand": customization.dotfiles_bootstrap_command,
        }
        if has_dotfiles
        else None,
        "setup": _steps(blueprint.lifecycle.setup, "setup"),
        "startup": _steps(blueprint.lifecycle.startup.steps, "startup"),
        "foreground": {
            "kind": "command",
            "run": foreground.run,
            "shell": foreground.shell,
            "workingDirectory": foreground.working_directory,
        }
        if isinstance(foreground, CommandForeground)
        else {"kind": "harness", "command": list(harness_command)},
        "limits": {
            "stepSeconds": limits.step_seconds,
            "graceSeconds": limits.grace_seconds,
            "tailBytes": limits.tail_bytes,
            **({"credentialSeconds": limits.credential_seconds} if credentials else {}),
        },
        "record": {
            "policy": settings.RUN_SPOOL_POLICY,
            "input": settings.RUN_INPUT_RECORDING,
            "spoolBytes": settings.RUN_SPOOL_BYTES,
            "segmentBytes": settings.RUN_SPOOL_SEGMENT_BYTES,
            "restart": runtime.persistence == "persistent",
        },
        "secrets": [],
        **({"credentials": True} if credentials else {}),
    }


def is_persistent(attempt: Attempt) -> bool:
    """Whether home and root of the attempt's workspace are kept from one attempt to the next."""
    return bool(attempt.spec.get("runtime", {}).get("persistence") == "persistent")


def volumes_of(blueprint: Blueprint, *, home: str) -> tuple[Volume, ...]:
    """Return what is kept of a persistent workspace: the user's home and the workspace's root.

    Where one of them is inside the other, the outer one holds both.
    """
    if blueprint.runtime.persistence != "persistent":
        return ()
    root = blueprint.runtime.workspace_root
    if f"{root}/".startswith(f"{home}/"):
        return (Volume("home", home),)
    if f"{home}/".startswith(f"{root}/"):
        return (Volume("work", root),)
    return (Volume("home", home), Volume("work", root))


def _steps(steps: Sequence[Step], kind: str) -> list[dict[str, Any]]:
    return [
        {
            "name": step.id or f"{kind}-{number}",
            "run": step.run,
            "shell": step.shell,
            "workingDirectory": step.working_directory,
        }
        for number, step in enumerate(steps, start=1)
    ]
