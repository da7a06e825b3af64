"""System checks of records."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from controlplane.checks import SETTINGS


@register(Tags.security, SETTINGS)
def check_record_signing_key(**kwargs: Any) -> list[CheckMessage]:
    """runs.W001: without ``SVC_RECORD_SIGNING_KEY`` records are sealed without a signature."""
    if settings.SVC_RECORD_SIGNING_KEY:
        return []
    return [
        Warning(
            "SVC_RECORD_SIGNING_KEY is not set: records of runs are sealed without a signature.",
            hint="Set it to base64 of 32 random bytes; deploy/.env.example shows how.",
            id="runs.W001",
        )
    ]
