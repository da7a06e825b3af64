"""Selected repositories: made concrete when a sandbox is asked for, remembered for its builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from controlplane.errors import Fault, ValidationFailed
from scm.app_connection import require_app
from scm.selections import ConcreteSource, resolve_selection
from workspaces.blueprint import WORKSPACE_SOURCE_ID, Blueprint, InputSource, Source, Sources
from workspaces.models import Sandbox, SourceReference, Workspace

SOURCE_POINTER = "/sourceSelection"
DOTFILES_POINTER = "/dotfilesSelection"
NO_APP = "Name the repository's URL in spec.sources instead."


@dataclass(frozen=True, slots=True)
class SelectedSources:
    """A blueprint whose sources are concrete, and which of them are selected repositories."""

    blueprint: Blueprint
    references: Mapping[str, UUID] = field(default_factory=dict)
    """Ids of installation repositories by the id of the source."""


def select_sources(
    blueprint: Blueprint,
    *,
    owner_user_id: str,
    source: Mapping[str, Any] | None,
    dotfiles: Mapping[str, Any] | None,
    workspace_id: UUID | None = None,
) -> SelectedSources:
    """Put the selected repositories in the place of the blueprint's sources.

    A workspace that is started again keeps the reference of a source that is still the same.
    Raises what :func:`scm.selections.resolve_selection` does; ``ServiceUnavailable``
    (``scm-app-unconfigured``) names all selections.
    """
    given = {
        pointer: selection
        for pointer, selection in ((SOURCE_POINTER, source), (DOTFILES_POINTER, dotfiles))
        if selection is not None
    }
    if given:
        require_app(*(Fault("scm-app-unconfigured", NO_APP, pointer) for pointer in given))
    references = _earlier_references(blueprint, owner_user_id, workspace_id)
    for pointer, selection in given.items():
        found = resolve_selection(selection, owner_user_id=owner_user_id, pointer=pointer)
        try:
            sources, source_id = _with_selected(blueprint.sources, pointer, found)
        except ValidationError:
            # The provider's default branch may have a name that no blueprint may have.
            detail = "The repository's default branch cannot be used here: name a ref."
            raise ValidationFailed([Fault("invalid-format", detail, f"{pointer}/ref")]) from None
        blueprint = blueprint.model_copy(update={"sources": sources})
        references[source_id] = found.installation_repository_id
    known = {WORKSPACE_SOURCE_ID, *(item.id for item in blueprint.sources.inputs)}
    return SelectedSources(
        blueprint, {key: value for key, value in references.items() if key in known}
    )


def _with_selected(sources: Sources, pointer: str, found: ConcreteSource) -> tuple[Sources, str]:
    """Return the sources with the selected one among them, and its id."""
    if pointer == SOURCE_POINTER:
        workspace = Source(provider="github", url=found.url, ref=found.ref)
        return Sources(workspace=workspace, inputs=sources.inputs), WORKSPACE_SOURCE_ID
    source_id = f"dotfiles-{found.installation_repository_id}"
    chosen = InputSource(
        id=source_id, purpose="dotfiles", provider="github", url=found.url, ref=found.ref
    )
    others = tuple(
        item for item in sources.inputs if item.purpose != "dotfiles" and item.id != source_id
    )
    return Sources(workspace=sources.workspace, inputs=(*others, chosen)), source_id


def _urls(blueprint_spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the URL of each source of a stored spec, by the source's id."""
    sources = blueprint_spec.get("sources") or {}
    workspace = sources.get("workspace")
    urls = {item["id"]: item["url"] for item in sources.get("inputs") or ()}
    return {**urls, **({WORKSPACE_SOURCE_ID: workspace["url"]} if workspace else {})}


def _earlier_references(
    blueprint: Blueprint, owner_user_id: str, workspace_id: UUID | None
) -> dict[str, UUID]:
    """Return the references of the workspace's latest sandbox to sources that are still the same.

    The owner's right to them is looked at again when they are fetched.
    """
    workspace = Workspace.objects.owned_by(owner_user_id).filter(pk=workspace_id).first()
    if workspace is None or workspace.latest_sandbox_id is None:
        return {}
    earlier = Sandbox.objects.get(pk=workspace.latest_sandbox_id)
    urls, wanted = _urls(earlier.spec), _urls(blueprint.to_wire())
    return {
        source_id: repository_id
        for source_id, repository_id in references_of(earlier.pk).items()
        if source_id in urls and urls[source_id] == wanted.get(source_id)
    }


def references_of(sandbox_id: UUID) -> dict[str, UUID]:
    """Return which sources of a sandbox are selected repositories."""
    rows = SourceReference.objects.filter(sandbox=sandbox_id)
    return dict(rows.values_list("source_id", "installation_repository_id"))


def remember_references(sandbox: Sandbox, references: Mapping[str, UUID]) -> None:
    """Store which sources of a new sandbox are selected repositories."""
    SourceReference.objects.bulk_create(
        SourceReference(
            sandbox=sandbox, source_id=source_id, installation_repository_id=repository_id
        )
        for source_id, repository_id in references.items()
    )
