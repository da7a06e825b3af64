"""Who may publish to a repository of the registry: the owner who was the first to do so."""

from __future__ import annotations

from controlplane.errors import Conflict, Fault
from workspaces.models import PublishedRepository

REPOSITORY_TAKEN = "repository-taken"


def taken(name: str) -> str:
    """Return what those are told who ask for another owner's repository."""
    return (
        f"Another owner was the first to publish to the repository {name}: choose another one, or "
        "ask the operator to hand it over."
    )


def refuse_taken(registry_id: str, name: str, *, owner_user_id: str) -> None:
    """Raise ``Conflict`` (``repository-taken``) for a repository that is another owner's.

    Whoever publishes to it asks again: until then it may become anybody's.
    """
    owner = PublishedRepository.objects.owner_of(registry_id, name)
    if owner not in (None, owner_user_id):
        fault = Fault(REPOSITORY_TAKEN, "It belongs to another owner.", pointer="/repository")
        raise Conflict(taken(name), code=REPOSITORY_TAKEN, errors=[fault])
