"""What a client asks for when it starts a sandbox, and the checks that need no other row."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.conf import settings

from controlplane.errors import Fault, NotFound, ValidationFailed
from controlplane.http.idempotency import hash_of
from workspaces.blueprint import Blueprint
from workspaces.egress.presets import PresetsError, read_presets
from workspaces.env_warnings import env_warnings
from workspaces.models import BuildJob, Sandbox
from workspaces.packages.standardization import standardize_with_index
from workspaces.status import SurfacedStatus

NAME_MAX_LENGTH = 120

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSandbox:
    """What a client asks for when it starts a sandbox; ``spec`` is still the client's JSON."""

    owner_user_id: str
    registry_id: str
    repository: str
    tag: str
    spec: object
    name: str | None = None
    workspace_id: uuid.UUID | None = None
    relation: Sandbox.Relation = Sandbox.Relation.LAUNCH
    source_selection: Mapping[str, Any] | None = None
    dotfiles_selection: Mapping[str, Any] | None = None
    credentials: Mapping[str, Any] | None = None
    ttl_seconds: int | None = None
    idempotency_key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request's body as it was sent, to tell a repeated request from a different one."""

    @property
    def request_hash(self) -> str:
        """Return the SHA-256 of the body, whatever the order of its members."""
        return hash_of(self.body)


@dataclass(frozen=True, slots=True)
class StartedSandbox:
    """The answer to a request that started a sandbox, perhaps an earlier one."""

    answer: dict[str, Any]
    replayed: bool


def check_registry(registry_id: str) -> None:
    """Raise ``NotFound`` unless ``registry_id`` is the configured registry."""
    if registry_id != settings.REGISTRY_NAME:
        raise NotFound(
            "This installation has no such registry.",
            code="registry-not-found",
            errors=[
                Fault(
                    "unknown-registry",
                    f'The configured registry is "{settings.REGISTRY_NAME}".',
                    pointer="/registryId",
                )
            ],
        )


def check_ceilings(blueprint: Blueprint) -> None:
    """Raise ``ValidationFailed`` for resources above the operator's ceilings."""
    resources = blueprint.runtime.resources
    faults = [
        Fault(
            "above-ceiling",
            f"This installation allows at most {ceiling:g}.",
            pointer=f"/spec/runtime/resources/{member}",
        )
        for member, wanted, ceiling in (
            ("memoryMb", resources.memory_mb, settings.WORKSPACE_MAX_MEMORY_MB),
            ("cpus", resources.cpus, settings.WORKSPACE_MAX_CPUS),
            ("pids", resources.pids, settings.WORKSPACE_MAX_PIDS),
        )
        if wanted is not None and wanted > ceiling
    ]
    if faults:
        raise ValidationFailed(faults)


def check_egress(blueprint: Blueprint) -> None:
    """Raise ``ValidationFailed`` for presets that this installation does not have."""
    egress = blueprint.runtime.network.egress
    if egress is None or not egress.presets:
        return
    try:
        presets = read_presets(settings.SVC_EGRESS_PRESETS)
    except PresetsError as error:
        log.error("egress_presets_not_read", reason=str(error))
        detail = (
            "The presets of this installation cannot be read; its operator has to correct them."
        )
        raise ValidationFailed(
            [Fault("unknown-preset", detail, pointer="/spec/runtime/network/egress/presets")]
        ) from error
    faults = [
        Fault(
            "unknown-preset",
            f"There is no preset {name}. There are: {', '.join(sorted(presets.by_name))}.",
            pointer=f"/spec/runtime/network/egress/presets/{number}",
        )
        for number, name in enumerate(egress.presets)
        if presets.find(name) is None
    ]
    if faults:
        raise ValidationFailed(faults)


def resolve_spec(blueprint: Blueprint) -> dict[str, Any]:
    """Return the spec to store: all defaults, packages by the distribution's names, no credentials.

    Raises ``ValidationFailed`` with every package that cannot be standardized, ``BadGateway``
    (``package-index-unavailable``) when that takes an index that was never read.
    """
    spec: dict[str, Any] = dict(blueprint.to_wire())
    spec.pop("credentials", None)
    family: str = blueprint.target.os.family
    if family == "auto":
        family = settings.SVC_DEFAULT_OS_FAMILY
    packages = standardize_with_index(blueprint.tooling.packages, family)
    spec["tooling"] = {
        **spec["tooling"],
        "packages": [
            {"id": package.id, **({"version": package.version} if package.version else {})}
            for package in packages
        ],
    }
    return spec


def infer_name(request: NewSandbox, blueprint: Blueprint) -> str:
    """Return a name for people, out of the repository's last part, the tag and the ref."""
    ref = blueprint.sources.workspace.ref if blueprint.sources.workspace else None
    parts = [request.repository.rsplit("/", 1)[-1], request.tag, ref or ""]
    words = [word for part in parts for word in re.split(r"[\s._/-]+", part) if word]
    return " ".join(word[:1].upper() + word[1:] for word in words)[:NAME_MAX_LENGTH].strip()


def answer_of(job: BuildJob) -> dict[str, Any]:
    """Return the answer to the request that has made ``job``."""
    attempt = job.attempt
    return {
        "sandboxId": str(attempt.sandbox_id),
        "workspaceId": str(attempt.workspace_id),
        "attemptId": str(attempt.pk),
        "runId": str(attempt.run_id),
        "jobId": str(job.pk),
        "name": attempt.sandbox.workspace.name,
        "status": SurfacedStatus.QUEUED.value,
        "registryId": job.registry_id,
        "repository": job.repository,
        "tag": job.tag,
        "warnings": env_warnings(attempt.sandbox.spec.get("runtime", {}).get("env", {})),
    }
