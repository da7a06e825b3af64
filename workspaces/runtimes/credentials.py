"""Credentials on their way into a workspace and back: what is said to the agent, and its answers.

``runs/agent/README.md`` describes the other side. Nothing of a secret gets into an error here.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from uuid import UUID

from workspaces.runtimes import boot
from workspaces.runtimes.base import AgentAnswer, LaunchError, RenewedCredential

DIRECTORY = "/run/svc"
"""Where the memory is mounted that holds them; it is gone with the container's life."""
PHASE = "credentials"
"""The agent's phase while it waits for them."""
DELIVER = ("credentials", "deliver")
WAIT_SECONDS = 2
"""How long a delivery that is part of a launch waits for the end of the boot."""
COLLECT = ("credentials", "collect")
WITHDRAW = ("credentials", "withdraw")
SECONDS = 30.0
"""For one call of the agent about them."""
MEMORY = "size=16m,mode=0711,noexec,nosuid,nodev"
MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_RENEWED = 64
MAX_NOTES = 16
MAX_SECRET_CHARACTERS = 64 * 1024


def require_taken(answer: AgentAnswer) -> None:
    """Raise ``credentials-refused`` unless the agent says that it has taken what it was given."""
    if answer.exit_code != 0:
        said = boot.one_line(answer.stderr.decode("utf-8", "replace")) or "it gave no reason"
        raise LaunchError(
            "credentials-refused", f"The workspace did not accept its credentials: {said}"
        )


def notes(answer: AgentAnswer) -> list[str]:
    """Return what the agent says it could not do with credentials that it has taken."""
    try:
        found = json.loads(answer.stdout.partition(b"\n")[0][:MAX_DOCUMENT_BYTES])["notes"]
        return [boot.one_line(note) for note in found[:MAX_NOTES] if isinstance(note, str)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def withdrawal(account_ids: Collection[UUID]) -> bytes:
    """Return the document that names the accounts to remove."""
    return json.dumps({"version": 1, "ids": sorted(map(str, account_ids))}).encode()


def renewed(answer: AgentAnswer) -> list[RenewedCredential]:
    """Return what the agent holds of renewable accounts; raises ``credentials-unclear``."""
    try:
        if answer.exit_code != 0 or len(answer.stdout) > MAX_DOCUMENT_BYTES:
            raise ValueError
        items = json.loads(answer.stdout)
        if not isinstance(items, list) or len(items) > MAX_RENEWED:
            raise ValueError
        return [_renewed(item) for item in items]
    except (ValueError, TypeError, KeyError, RecursionError):
        # Not chained: the cause holds what was read.
        raise LaunchError(
            "credentials-unclear", "The workspace's answer about its credentials is invalid."
        ) from None


def _renewed(item: object) -> RenewedCredential:
    if not isinstance(item, dict) or not isinstance(item["id"], str):
        raise ValueError
    secret = item["secret"]
    if not isinstance(secret, str) or len(secret) > MAX_SECRET_CHARACTERS:
        raise ValueError
    return RenewedCredential(account_id=UUID(item["id"]), secret=secret)
