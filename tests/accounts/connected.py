"""Accounts as owners connect them, through the API."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from accounts import sealing
from accounts.connected import place_of_renewed
from accounts.models import RenewedSecret
from accounts.profiles import ensure_default_profile
from tests.conftest import OWNER, Answer, Api

KEY = base64.b64encode(bytes(range(32))).decode()
ACCOUNTS = "/v1/connected-accounts"


def codex(refreshed: str = "2026-01-01T00:00:00Z", account: str = "a1", **tokens: str) -> str:
    """Return an ``auth.json`` as Codex writes it."""
    return json.dumps(
        {
            "OPENAI_API_KEY": None,
            "auth_mode": "chatgpt",
            "tokens": {"refresh_token": "refresh-0000", "account_id": account, **tokens},
            "last_refresh": refreshed,
        },
        indent=2,
    )


SECRETS = {
    "claude": "sk-ant-oat01-" + "c" * 40,
    "github": "ghp_" + "g" * 36,
    "codex": codex(),
    "generic": "the-secret-of-a-variable",
}


def connect(
    provider: str, name: str = "default", secret: str | None = None, *, owner: str = OWNER
) -> str:
    """Connect an account and return its id."""
    body: dict[str, Any] = {
        "ownerUserId": owner,
        "provider": provider,
        "name": name,
        "secret": secret or SECRETS[provider],
    }
    return str(Api().post(ACCOUNTS, body, expect=201).body["connectedAccountId"])


def renewals(account: str, owner: str = OWNER) -> list[dict[str, Any]]:
    """Return what waits for the owner's approval."""
    answer = Api().get(f"{ACCOUNTS}/{account}/renewals?ownerUserId={owner}", expect=200)
    items: list[dict[str, Any]] = answer.body["items"]
    return items


def renewed_secrets(account: str) -> list[str]:
    """Return the secrets that wait for approval, the latest first."""
    waiting = RenewedSecret.objects.filter(account_id=uuid.UUID(account)).order_by("-pk")
    return [
        sealing.unseal(bytes(one.sealed), place_of_renewed(one.account, one.workspace_id))
        for one in waiting
    ]


def approve(account: str, renewal: str, owner: str = OWNER, *, expect: int = 200) -> Answer:
    """Approve a renewal."""
    path = f"{ACCOUNTS}/{account}/renewals/{renewal}/approve"
    return Api().post(path, {"ownerUserId": owner}, expect=expect)


def mark_invalid(account: str, owner: str = OWNER) -> None:
    """Mark an account as refused by its provider."""
    Api().post(f"{ACCOUNTS}/{account}/mark-invalid", {"ownerUserId": owner}, expect=200)


def delete(account: str, owner: str = OWNER) -> None:
    """Delete an account."""
    Api().request("DELETE", f"{ACCOUNTS}/{account}?ownerUserId={owner}", expect=200)


def bind(*accounts: tuple[str, str], owner: str = OWNER, profile: uuid.UUID | None = None) -> str:
    """Have a profile, ``default`` unless told, give these accounts; return its id."""
    profile_id = str(profile or ensure_default_profile(owner).pk)
    bindings = [
        {"provider": provider, "connectedAccountId": account} for provider, account in accounts
    ]
    path = f"/v1/profiles/{profile_id}/credential-bindings"
    Api().request("PUT", path, {"ownerUserId": owner, "bindings": bindings}, expect=200)
    return profile_id
