"""System checks: settings that are well-formed but unwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from controlplane.settings_environment import is_loopback

SETTINGS = "settings"
"""The tag of the checks that every process makes as it starts. Those of Django are about the code,
which no environment changes: a worker has neither pages nor paths, and would read them for that."""


@register(Tags.security, SETTINGS)
def check_signing_secret(**kwargs: Any) -> list[CheckMessage]:
    """controlplane.W001: without ``WEB_AUTH_SECRET`` every restart signs everybody out."""
    if settings.WEB_AUTH_SECRET:
        return []
    return [
        Warning(
            "WEB_AUTH_SECRET is not set: admin sessions end when the process ends.",
            hint="Set it to 32 random bytes in hex; deploy/.env.example shows how.",
            id="controlplane.W001",
        )
    ]


OPEN_TO_PAGES = (
    "SVC_CORS_ALLOWED_ORIGINS is * while the API is reached on loopback only: any web page open on "
    "this machine can read its answers."
)


def read_by_all_pages() -> bool:
    """Tell whether pages of everywhere may read what the API answers."""
    return bool(settings.CORS_ALLOWED_ORIGINS_SETTING.strip() == "*")


def open_to_pages() -> bool:
    """Tell whether pages of everywhere may read an API that is meant for this machine alone."""
    return read_by_all_pages() and is_loopback(settings.SVC_PUBLISHED_HOST)


@register(Tags.security)
def check_cors_on_loopback(**kwargs: Any) -> list[CheckMessage]:
    """controlplane.W002: loopback keeps nobody out who is let in through a browser."""
    if not open_to_pages():
        return []
    return [
        Warning(
            OPEN_TO_PAGES,
            hint="List the origins that may read answers, such as http://localhost:3000, or leave "
            "it empty.",
            id="controlplane.W002",
        )
    ]


@register(SETTINGS)
def check_extra_ca_file(**kwargs: Any) -> list[CheckMessage]:
    """controlplane.E001: ``SVC_EXTRA_CA_FILE`` has to be readable."""
    path = settings.SVC_EXTRA_CA_FILE
    if not path or Path(path).is_file():
        return []
    return [
        Error(
            "SVC_EXTRA_CA_FILE names a file that is not there.",
            hint="Give the path of a PEM file, or unset it.",
            id="controlplane.E001",
        )
    ]


@register(SETTINGS)
def check_lease(**kwargs: Any) -> list[CheckMessage]:
    """controlplane.E002: a lease has to outlive the heartbeats that renew it."""
    shortest = 2 * settings.WORKER_HEARTBEAT_INTERVAL_MS
    faults: list[CheckMessage] = []
    for name in ("WORKSPACE_BUILD_JOB_LEASE_DURATION_MS", "WORKER_HEARTBEAT_STALE_MS"):
        if getattr(settings, name) < shortest:
            faults.append(
                Error(
                    f"{name} is below twice WORKER_HEARTBEAT_INTERVAL_MS: healthy workers would "
                    "be considered "
                    "dead.",
                    hint=f"Set it to {shortest} or more.",
                    id="controlplane.E002",
                )
            )
    return faults
