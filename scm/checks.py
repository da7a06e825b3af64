"""System checks of the source-hosting app; settings that are malformed stop every process before.

::

    scm.W001    the provider's API is asked over a connection that is not encrypted
    scm.W002    there is an app, and no secret for its webhooks
    scm.W003    the secret of the webhooks can be guessed
    scm.W004    this process knows the name of an app, and not the secret that belongs to it
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from controlplane.checks import SETTINGS

_SHORTEST_SECRET = 16
_MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_hex(32))'"


@register(Tags.security, SETTINGS)
def check_provider_address(**kwargs: Any) -> list[CheckMessage]:
    """scm.W001: tokens that go over ``http`` can be read on the way."""
    url = urlsplit(settings.SCM_API_BASE_URL)
    if not settings.SCM_APP_ID or url.scheme == "https" or _is_this_machine(url.hostname or ""):
        return []
    return [
        Warning(
            "SCM_API_BASE_URL is not https: the app's tokens can be read in transit.",
            hint="Use the https address; SVC_EXTRA_CA_FILE adds a certificate authority of your "
            "own.",
            id="scm.W001",
        )
    ]


@register(Tags.security, SETTINGS)
def check_webhook_secret(**kwargs: Any) -> list[CheckMessage]:
    """scm.W002 and scm.W003: an app should hear of changes, and from its provider alone."""
    if not settings.SCM_APP_WEBHOOK_SECRET:
        if not settings.SCM_APP_ID:
            return []
        return [
            Warning(
                "SCM_APP_WEBHOOK_SECRET is not set: suspended or removed installations, and "
                "changed repositories, are only noticed at the next sync.",
                hint="Set it here and in the app's settings to the output of this command: "
                f"{_MAKE_ONE}",
                id="scm.W002",
            )
        ]
    if len(settings.SCM_APP_WEBHOOK_SECRET) >= _SHORTEST_SECRET:
        return []
    return [
        Warning(
            "SCM_APP_WEBHOOK_SECRET is short: anyone who guesses it can pretend to be the "
            "provider.",
            hint="Set it here and in the app's settings to the output of this command: "
            f"{_MAKE_ONE}",
            id="scm.W003",
        )
    ]


@register(Tags.security, SETTINGS)
def check_app_secrets(**kwargs: Any) -> list[CheckMessage]:
    """scm.W004: an app can be used only by the processes that have its secrets."""
    pairs = (
        ("SCM_APP_ID", "SCM_APP_PRIVATE_KEY", "the app's repositories"),
        ("SCM_APP_CLIENT_ID", "SCM_APP_CLIENT_SECRET", "accounts through the app"),
    )
    return [
        Warning(
            f"{name} is set and {secret} is not: this process cannot use {what}.",
            hint=f"Set {secret} for the API and the build workers. Other processes need neither.",
            id="scm.W004",
        )
        for name, secret, what in pairs
        if getattr(settings, name) and not getattr(settings, secret)
    ]


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
