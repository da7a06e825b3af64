"""Which connected accounts a sandbox is started with: named, given by a profile, or as before."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from accounts.resolution import Resolution, resolve_credentials, reuse_references
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint
from workspaces.models import Attempt


def choose_credentials(
    blueprint: Blueprint,
    *,
    beside_spec: Mapping[str, Any] | None,
    workspace_id: uuid.UUID | None,
    owner_user_id: str,
) -> Resolution:
    """Return the accounts that a request's workspace is given.

    Those beside the spec count before those in it. A workspace that is started again is given what
    it had, unless the request says anything of them. Raises what ``accounts.resolution`` does.
    """
    if beside_spec is not None:
        return resolve_credentials(beside_spec, owner_user_id=owner_user_id)
    in_spec = blueprint.to_wire().get("credentials")
    if isinstance(in_spec, dict):
        return resolve_credentials(
            in_spec, owner_user_id=owner_user_id, pointer="/spec/credentials"
        )
    if workspace_id is None:
        return resolve_credentials(None, owner_user_id=owner_user_id)
    mine = Attempt.objects.filter(workspace=workspace_id, workspace__owner_user_id=owner_user_id)
    return same_credentials(mine.order_by("-pk").first(), owner_user_id)


def same_credentials(earlier: Attempt | None, owner_user_id: str) -> Resolution:
    """Return the accounts that an earlier attempt's workspace was given.

    Raises ``Conflict`` (``connected-account-not-active``) when one of them cannot be used any more.
    """
    references = [] if earlier is None else workspaces.references_of(earlier)
    return reuse_references(references, owner_user_id=owner_user_id)
