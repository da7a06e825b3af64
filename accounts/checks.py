"""System checks of connected accounts; a malformed key stops every process before they run."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from accounts import sealing
from controlplane.checks import SETTINGS

_MAKE_ONE = "python3 -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())'"


@register(Tags.security, SETTINGS)
def check_credentials_key(**kwargs: Any) -> list[CheckMessage]:
    """accounts.W001: without ``SVC_CREDENTIALS_KEY`` no account can be connected or used.

    accounts.E001: ``SVC_CREDENTIALS_KEY_PREVIOUS`` is for the predecessor of a present key;
    accounts.W002: which is another one.
    """
    if not settings.SVC_CREDENTIALS_KEY and not settings.SVC_CREDENTIALS_KEY_PREVIOUS:
        return [
            Warning(
                "SVC_CREDENTIALS_KEY is not set: accounts cannot be connected, and workspaces "
                "cannot be "
                "started with one.",
                hint="Set it to the output of this command, the same for the API and the "
                f"workers: {_MAKE_ONE}",
                id="accounts.W001",
            )
        ]
    if not settings.SVC_CREDENTIALS_KEY:
        return [
            Error(
                "SVC_CREDENTIALS_KEY_PREVIOUS is set, but SVC_CREDENTIALS_KEY is not.",
                hint="Put the key into SVC_CREDENTIALS_KEY; the other setting is for the previous "
                "key.",
                id="accounts.E001",
            )
        ]
    if sealing.same_keys():
        return [
            Warning(
                "SVC_CREDENTIALS_KEY and SVC_CREDENTIALS_KEY_PREVIOUS are the same key.",
                hint="Unset the second, or set the first to a new key and run "
                "`manage.py rotatecredentials`.",
                id="accounts.W002",
            )
        ]
    return []


@register(SETTINGS)
def check_credentials_interval(**kwargs: Any) -> list[CheckMessage]:
    """accounts.W003: a workspace has to wait for its accounts until somebody looks after it."""
    if 2 * settings.WORKER_CREDENTIALS_INTERVAL_MS <= settings.WORKSPACE_CREDENTIALS_TIMEOUT_MS:
        return []
    return [
        Warning(
            "WORKSPACE_CREDENTIALS_TIMEOUT_MS is below twice WORKER_CREDENTIALS_INTERVAL_MS: a "
            "workspace that its engine starts again may give up before it gets its accounts.",
            hint=f"Set it to {2 * settings.WORKER_CREDENTIALS_INTERVAL_MS} or more.",
            id="accounts.W003",
        )
    ]
