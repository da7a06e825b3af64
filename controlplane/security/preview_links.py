"""Signed links to a port of a workspace: made by the API, checked by the preview gateway.

A token says which port of which workspace its bearer may reach, on whose behalf and until when. It
is signed with a key that only this service knows, is stored nowhere, and opens nothing else.
"""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import dataclass
from typing import Literal

TOKEN_PARAMETER = "svc-preview-token"  # noqa: S105 - names where a token stands
"""The member of an address's query that holds the token of a link."""
TOKEN_HEADER = "x-svc-preview-token"  # noqa: S105 - the same
"""The header with which programs send it instead."""
SCOPE = "forward"
MAX_TOKEN_CHARACTERS = 4096

_PURPOSE = b"links to ports of workspaces"

Kind = Literal["link", "cookie"]


class LinkRefused(Exception):
    """The token opens nothing; ``expired`` when it once did."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token allows. ``expires_at`` is in seconds since 1970."""

    kind: Kind
    """``link`` stands in addresses and headers, ``cookie`` in a browser that has opened one."""
    workspace_id: str
    port: int
    owner: str
    expires_at: int


def signing_key(secret: str) -> bytes:
    """Return the key of this installation; ``secret`` is what API and gateways share."""
    return hmac.digest(secret.encode(), _PURPOSE, "sha256")


def sign(grant: Grant, key: bytes) -> str:
    """Return the token for ``grant``: letters, digits, ``-``, ``_`` and one ``.``."""
    members = {
        "scope": SCOPE,
        "kind": grant.kind,
        "workspace": grant.workspace_id,
        "port": grant.port,
        "owner": grant.owner,
        "until": grant.expires_at,
    }
    said = _encoded(json.dumps(members, separators=(",", ":")).encode())
    return f"{said}.{_encoded(hmac.digest(key, said.encode(), 'sha256'))}"


def verify(token: str, key: bytes, *, kind: Kind, now: float) -> Grant:
    """Return what ``token`` allows. Raises ``LinkRefused``."""
    said, _, signature = token.partition(".")
    right = _encoded(hmac.digest(key, said.encode("utf-8", "replace"), "sha256"))
    if len(token) > MAX_TOKEN_CHARACTERS or not hmac.compare_digest(
        signature.encode("utf-8", "replace"), right.encode()
    ):
        raise LinkRefused("This link was not made by this installation.")
    members = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    if (members["scope"], members["kind"]) != (SCOPE, kind):
        raise LinkRefused("This token is for something else.")
    if now >= members["until"]:
        raise LinkRefused("This link has expired.", expired=True)
    return Grant(
        kind=kind,
        workspace_id=members["workspace"],
        port=members["port"],
        owner=members["owner"],
        expires_at=members["until"],
    )


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
