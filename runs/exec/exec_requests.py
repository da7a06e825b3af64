"""Reading a request for an exec, with its idempotency key."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request

from controlplane.errors import ValidationFailed
from controlplane.http.idempotency import hash_of, read_idempotency_key
from controlplane.http.requests import Reading, examine
from runs.exec.serializers import ExecRequestSerializer


def read_exec(request: Request) -> tuple[Reading, str | None, str]:
    """Return what the client asks for, its key, and a digest of path and body.

    Raises ``ValidationFailed`` with all faults of the request.
    """
    reading = examine(
        request, body=ExecRequestSerializer, owner_required=settings.SVC_REQUIRE_OWNER
    )
    key, faults = read_idempotency_key(request)
    if reading.faults or faults:
        raise ValidationFailed([*reading.faults, *faults])
    digest = hash_of({"path": request.path, "body": request.data}) if key is not None else ""
    return reading, key, digest
