"""A history of an installation, as the provider's events tell it, and what we keep of it."""

from __future__ import annotations

from typing import Any

from scm.models import Installation, InstallationRepository

DAY = 86_400
BEGIN = 1_767_000_000


def installation(**members: Any) -> dict[str, Any]:
    """Return an installation as a payload holds it."""
    return {
        "id": 7,
        "account": {"login": "octo-org", "id": 9007, "type": "Organization"},
        "repository_selection": "all",
        "permissions": {"contents": "read", "metadata": "read"},
        "created_at": BEGIN,
        "updated_at": BEGIN,
        "suspended_at": None,
        **members,
    }


def repository(number: int, name: str, **members: Any) -> dict[str, Any]:
    return {"id": number, "full_name": f"octo-org/{name}", "private": True, **members}


Event = tuple[str, dict[str, Any]]

CREATED: Event = ("installation", {"action": "created", "installation": installation()})
SUSPENDED: Event = (
    "installation",
    {
        "action": "suspend",
        "installation": installation(updated_at=BEGIN + DAY, suspended_at="2025-12-30T09:20:00Z"),
    },
)
UNSUSPENDED: Event = (
    "installation",
    {"action": "unsuspend", "installation": installation(updated_at=BEGIN + 3 * DAY)},
)
PERMITTED: Event = (
    "installation",
    {
        "action": "new_permissions_accepted",
        "installation": installation(
            updated_at="2026-01-02T09:20:00.000-04:00",
            permissions={"contents": "write"},
            repository_selection="selected",
        ),
    },
)
DELETED: Event = (
    "installation",
    {"action": "deleted", "installation": installation(updated_at=BEGIN + DAY)},
)
REMOVED: Event = (
    "installation_repositories",
    {
        "action": "removed",
        "installation": installation(),
        "repositories_removed": [repository(701, "dotfiles")],
        "repositories_added": [],
    },
)
RENAMED: Event = (
    "repository",
    {
        "action": "renamed",
        "installation": {"id": 7},
        "repository": repository(700, "renamed"),
        "changes": {"repository": {"name": {"from": "app"}}},
    },
)


def state() -> dict[str, Any]:
    """Return everything that events may change."""
    members = ("status", "account_login", "permissions", "repository_selection", "suspended_at")
    return {
        "installations": list(
            Installation.objects.order_by("external_id").values("external_id", *members)
        ),
        "repositories": sorted(
            InstallationRepository.objects.present().values_list(
                "repository__external_id", "full_name", "is_private", "is_archived"
            )
        ),
    }
