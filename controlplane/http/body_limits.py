"""How large the body of a request may be."""

from __future__ import annotations

import re

from django.conf import settings

WEBHOOK_PATH = "/v1/scm/webhooks"
_FILES = re.compile(r"/v1/workspaces/[^/]+/(?:files|archive)\Z")


def is_spooled(path: str) -> bool:
    """Tell whether the body of a request to ``path`` is content, which may be of any size."""
    return _FILES.match(path) is not None


def body_limit(path: str) -> int:
    """Return how many bytes a request to ``path`` may have.

    What the source-hosting provider delivers is larger than what clients send, and files are
    larger still.
    """
    if is_spooled(path):
        return int(settings.SVC_MAX_FILE_BYTES)
    if path == WEBHOOK_PATH:
        return int(settings.SCM_WEBHOOK_MAX_BODY_BYTES)
    return int(settings.SVC_MAX_BODY_BYTES)
