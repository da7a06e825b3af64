"""Webhook deliveries as the provider sends them, and all the examples that it publishes."""

from __future__ import annotations

import hashlib
import hmac
import json
import lzma
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import Answer, Api

SECRET = "a webhook secret, as long as it needs to be"
PATH = "/v1/scm/webhooks"
EXAMPLES = Path(__file__).parent / "webhook_examples" / "examples.json.xz"


@cache
def examples() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return event and payload of every published example, by release of the provider."""
    held = json.loads(lzma.decompress(EXAMPLES.read_bytes()))
    return {
        release: [(event, payload) for event, payload in pairs] for release, pairs in held.items()
    }


def signature(body: bytes, secret: str = SECRET) -> str:
    """Return the header that the provider signs a body with."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def headers(body: bytes, event: str, delivery_id: str | None = None) -> dict[str, str]:
    """Return the headers of a delivery."""
    return {
        "x-github-delivery": delivery_id or str(uuid.uuid4()),
        "x-github-event": event,
        "x-hub-signature-256": signature(body),
        "user-agent": "GitHub-Hookshot/044aadd",
    }


def deliver(
    api: Api, event: str, payload: Any, *, delivery_id: str | None = None, expect: int = 202
) -> Answer:
    """Deliver an event, signed."""
    body = json.dumps(payload).encode()
    return api.request(
        "POST", PATH, raw=body, headers=headers(body, event, delivery_id), expect=expect
    )
