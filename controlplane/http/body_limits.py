"""How large the body of a request may be."""

from __future__ import annotations

from django.conf import settings

WEBHOOK_PATH = "/v1/scm/webhooks"


def body_limit(path: str) -> int:
    """Return how many bytes a request to ``path`` may have.

    What the source-hosting provider delivers is larger than what clients send.
    """
    if path == WEBHOOK_PATH:
        return int(settings.SCM_WEBHOOK_MAX_BODY_BYTES)
    return int(settings.SVC_MAX_BODY_BYTES)
