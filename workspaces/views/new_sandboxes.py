"""Reading a request for a new sandbox, and answering it: both endpoints that start one do this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.errors import Fault, ValidationFailed
from controlplane.http.idempotency import read_idempotency_key
from controlplane.http.requests import examine
from controlplane.http.serializers import InputSerializer
from workspaces.blueprint import Blueprint
from workspaces.lifecycle.starting.start_request import NewSandbox, StartedSandbox
from workspaces.models import Sandbox
from workspaces.serializers import StartedSandboxSerializer

IDEMPOTENCY_KEY = OpenApiParameter(
    "idempotency-key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "Repeating a request with the same key returns the first answer again, with the header "
        "`idempotency-replayed: true`. Keys belong to the owner. After a 502 because the build "
        "queue could not be reached, a repeated request starts another attempt of the same "
        "sandbox, or returns the one that is live."
    ),
)


def read_new_sandbox(request: Request, serializer: type[InputSerializer]) -> NewSandbox:
    """Return what the client asks for; all faults of the request at once, the spec's too."""
    reading = examine(request, body=serializer, owner_required=True)
    key, key_faults = read_idempotency_key(request)
    faults = [*reading.faults, *key_faults, *_misplaced_relation(request.data)]
    if faults:
        raise ValidationFailed([*faults, *_spec_faults(request.data)])
    values = reading.body
    default = Sandbox.Relation.REBUILD if values.get("workspace_id") else Sandbox.Relation.LAUNCH
    return NewSandbox(
        owner_user_id=reading.required_owner,
        registry_id=values["registry_id"],
        repository=values["repository"],
        tag=values["tag"],
        spec=values["spec"],
        name=values.get("name"),
        workspace_id=values.get("workspace_id"),
        relation=Sandbox.Relation(values.get("relation", default)),
        source_selection=values.get("source_selection"),
        dotfiles_selection=values.get("dotfiles_selection"),
        credentials=values.get("credentials"),
        ttl_seconds=values.get("ttl_seconds"),
        idempotency_key=key,
        body=dict(request.data),
    )


def _misplaced_relation(body: object) -> list[Fault]:
    if not isinstance(body, dict) or body.get("relation") is None or body.get("workspaceId"):
        return []
    detail = "A relation needs an existing workspace: give its workspaceId."
    return [Fault("relation-without-workspace", detail, pointer="/relation")]


def _spec_faults(body: object) -> Sequence[Fault]:
    if isinstance(body, dict) and body.get("spec") is not None:
        try:
            Blueprint.parse(body["spec"])
        except ValidationFailed as exc:
            return exc.errors
    return []


def accepted(started: StartedSandbox, location: str) -> Response:
    """Answer with the sandbox that was started, perhaps earlier; ``location`` says where it is."""
    headers = {"Location": location}
    if started.replayed:
        headers["idempotency-replayed"] = "true"
    body = StartedSandboxSerializer(_by_python_name(started.answer)).data
    return Response(body, status=202, headers=headers)


def _by_python_name(answer: dict[str, Any]) -> dict[str, Any]:
    names = {"sandboxId": "sandbox_id", "workspaceId": "workspace_id", "attemptId": "attempt_id"}
    names |= {"runId": "run_id", "jobId": "job_id", "registryId": "registry_id"}
    return {"warnings": []} | {names.get(name, name): value for name, value in answer.items()}
