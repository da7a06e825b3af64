"""The second part of a job: from a published image to a workspace that is ready.

What the engine is asked for is made here: the agent's boot configuration out of the blueprint, and
the accounts that the workspace is given. The adapter launches and waits until the agent is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.conf import settings

from accounts import delivery
from accounts.delivery import DeliveryError, OpenedAccount
from accounts.resolution import Reference
from builds.pipeline.job_metrics import measured
from builds.pipeline.job_state import JobState
from builds.planner import DOTFILES_DESTINATION, ImagePlan
from controlplane.errors import JobError
from controlplane.security.redaction import redact
from runs.boot_runs import BootRuns
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint, CommandForeground, Step
from workspaces.credentials.documents import as_delivered, document_of, note_delivered
from workspaces.credentials.upkeep import keep_renewed
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.bound.authorities import authority_of
from workspaces.models import Attempt
from workspaces.runtimes.base import LaunchRequest, RuntimeAdapter, Volume
from workspaces.warm_pool.pool import WarmPool


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLimits:
    """How long steps may take and how much of their output a failure keeps."""

    step_seconds: float
    grace_seconds: float
    tail_bytes: int = 8192
    credential_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class JobCredentials:
    """The accounts of one job, opened for the moment that giving them out takes, no longer."""

    job: JobState
    references: Sequence[Reference]

    @classmethod
    def of(cls, job: JobState) -> JobCredentials:
        """Return what the job's attempt is to be given."""
        return cls(job, job.begun_with.accounts)

    def document(self) -> bytes:
        """Open the accounts for the workspace that is being launched.

        Raises ``DeliveryError``, and ``LeaseLost`` when the job is another worker's by now.
        """

        def open_ours() -> Sequence[OpenedAccount]:
            opened = self._open()
            note_delivered(self.job.attempt, opened)
            return as_delivered(self.job.attempt, opened)

        opened = self.job.write(open_ours)
        content = document_of(opened)
        delivery.stamp_used(opened)
        return content

    def masks(self) -> Sequence[str]:
        """Return every text that must not be recorded; raises ``DeliveryError``."""
        return delivery.masks(self.job.read(self._open))

    def without_secrets(self, error: JobError) -> JobError:
        """Return the failure of a launch as it may be stored.

        The agent masks what it tells; this is for what the engine tells beside it.
        """
        message = error.message
        if self.references:
            try:
                message = redact(message, self.masks())
            except DeliveryError:
                # They do not open any more, so nobody can say what of the output is theirs.
                message = message.partition("\n")[0]
        return type(error)(error.code, message)

    def _open(self) -> Sequence[OpenedAccount]:
        workspace = self.job.attempt.workspace
        return delivery.open_accounts(
            self.references, owner_user_id=workspace.owner_user_id, workspace_id=workspace.pk
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLauncher:
    """Launches the workspaces of jobs; calls may come from several threads."""

    adapter: RuntimeAdapter
    boot_limits: BootLimits
    instance_id: str
    timeout: float
    require_isolation: Callable[[], None]
    """Returns when a workspace with a network reaches nothing that is not its own."""
    require_egress: Callable[[], None]
    """Returns when a workspace with an egress policy reaches only what that names."""
    pool: WarmPool
    """Where containers may wait for it."""

    def launch(
        self, job: JobState, blueprint: Blueprint, plan: ImagePlan, credentials: JobCredentials
    ) -> None:
        """Launch the image that was published, or adopt the container that an earlier worker made.

        Returns when the workspace is ready and that is written to the job.
        """
        with measured("launch"):
            request = self._request(job, blueprint, plan, credentials)
            request = replace(request, member=self.pool.claim(request, job.read))
            try:
                if request.outbound:
                    self.require_isolation()
                if request.egress is not None:
                    self.require_egress()
                launched = self.adapter.launch(request, cancelled=job.cancelled)
                job.on_booted()
            except JobError as exc:
                raise credentials.without_secrets(exc) from exc
        job.finish_launch(launched)
        self.pool.note_start(request)

    def _request(
        self, job: JobState, blueprint: Blueprint, plan: ImagePlan, credentials: JobCredentials
    ) -> LaunchRequest:
        attempt = job.attempt
        runtime = blueprint.runtime
        resources = runtime.resources
        given = bool(credentials.references)
        volumes = volumes_of(blueprint, home=plan.home)
        egress = blueprint.runtime.network.egress
        return LaunchRequest(
            instance_id=self.instance_id,
            run_id=attempt.run_id,
            attempt_id=attempt.pk,
            workspace_id=attempt.workspace_id,
            job_id=job.id,
            attempt_count=job.row.attempt_count,
            image=job.row.published_digest_reference,
            boot=boot_configuration(
                attempt, blueprint, plan, limits=self.boot_limits, credentials=given
            ),
            working_directory=runtime.working_directory,
            outbound=runtime.network.outbound,
            egress=job.read(lambda: egress_of(attempt, egress, credentials.references)),
            authority=job.read(lambda: authority_of(attempt.workspace_id)) if egress else None,
            memory_mb=resources.memory_mb or settings.WORKSPACE_MEMORY_MB,
            cpus=resources.cpus or settings.WORKSPACE_CPUS,
            pids=resources.pids or settings.WORKSPACE_PIDS,
            sudo=blueprint.customization.sudo,
            restart=runtime.persistence == "persistent",
            oci_runtime=runtime.oci_runtime,
            timeout=self.timeout,
            volumes=volumes,
            fresh_volumes=bool(volumes)
            and not job.read(lambda: workspaces.was_ever_ready(attempt)),
            before_removal=job.require_lease,
            on_started=job.on_started,
            collect=partial(BootRuns().collect_from, attempt.run_id),
            credentials=credentials.document if given else None,
            before_discard=partial(keep_renewed, self.adapter, attempt.run_id),
        )


def boot_configuration(
    attempt: Attempt,
    blueprint: Blueprint,
    plan: ImagePlan,
    *,
    limits: BootLimits,
    credentials: bool,
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
        "user": plan.user,
        "home": plan.home,
        "shell": plan.shell,
        "sudo": customization.sudo,
        "workspaceRoot": runtime.workspace_root,
        "workingDirectory": runtime.working_directory,
        "env": dict(runtime.env),
        "dotfiles": {
            "path": DOTFILES_DESTINATION,
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
        else {"kind": "harness", "command": list(plan.harness_command)},
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


def volumes_of(blueprint: Blueprint, *, home: str) -> tuple[Volume, ...]:
    """Return what is kept of a persistent workspace: the user's home and the workspace's root.

    Where one of them is inside the other, the outer one holds both.
    """
    if blueprint.runtime.persistence != "persistent":
        return ()
    paths = {"home": home, "work": blueprint.runtime.workspace_root}
    if f"{paths['work']}/".startswith(f"{home}/"):
        del paths["work"]
    elif f"{home}/".startswith(f"{paths['work']}/"):
        del paths["home"]
    return tuple(Volume(purpose, path) for purpose, path in paths.items())


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
