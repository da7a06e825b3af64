"""The header ``idempotency-key``: what a client names a request by that it may have to repeat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from controlplane.errors import Conflict, Fault
from controlplane.http.problems import faults_of
from controlplane.http.serializers import TextField

HEADER = "idempotency-key"
KEY_MAX_LENGTH = 255


def read_idempotency_key(request: Request) -> tuple[str | None, list[Fault]]:
    """Return the request's key, None without one, and what is wrong with it."""
    if HEADER not in request.headers:
        return None, []
    try:
        key = TextField(max_length=KEY_MAX_LENGTH).run_validation(request.headers[HEADER])
    except serializers.ValidationError as exc:
        return None, [
            Fault(fault.code, fault.detail, header=HEADER) for fault in faults_of(exc.detail)
        ]
    return key, []


def hash_of(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a body, whatever the order of its members."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def key_reused() -> Conflict:
    """Return the error for a key that another request had."""
    return Conflict(
        "This idempotency key was used for a different request.",
        code="idempotency-key-reused",
        errors=[
            Fault(
                "idempotency-key-reused",
                "Repeat the first body, or use another key.",
                header=HEADER,
            )
        ],
    )
