"""The named volumes of a persistent workspace: what outlives its containers.

They are named after the workspace, so every attempt finds them again, and carry the installation's
and the workspace's labels. The engine fills an empty volume with what the image has at its place
when the first container with it is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from docker.errors import APIError, NotFound
from docker.types import Mount

from workspaces.runtimes.base import LaunchError, Volume
from workspaces.runtimes.docker.engine_api import Engine

WORKSPACE_LABEL = "svc.workspace"


def volume_name(workspace_id: UUID, purpose: str) -> str:
    """Return the name of a workspace's volume."""
    return f"svc-{workspace_id}-{purpose}"


def prepare(
    engine: Engine,
    workspace_id: UUID,
    volumes: Sequence[Volume],
    *,
    before_removal: Callable[[], None] | None = None,
) -> list[Mount]:
    """Return the mounts of the workspace's volumes, which exist then.

    With ``before_removal``, which may raise, what an earlier launch that came to nothing has left
    in them is removed. Raises ``LaunchError`` (``launch-refused``) when a volume of that name is
    not this installation's.
    """
    labels = {"svc.instance": engine.instance_id, WORKSPACE_LABEL: str(workspace_id)}
    mounts = []
    for volume in volumes:
        name = volume_name(workspace_id, volume.purpose)
        own = {**labels, "svc.purpose": volume.purpose}
        if before_removal is not None and _is_ours(engine, name, labels):
            before_removal()
            _remove(engine, name)
        # Of an existing volume of that name the engine returns what it has.
        engine.client.volumes.create(name, labels=own)
        if not _is_ours(engine, name, labels):
            raise LaunchError(
                "launch-refused",
                "A volume of another program has the name of the workspace's volume.",
            )
        # Should somebody remove it in between, the engine makes it again with the container: with
        # these labels, so that it is still ours.
        mounts.append(Mount(target=volume.path, source=name, type="volume", labels=own))
    return mounts


def remove_all(engine: Engine, workspace_id: UUID) -> int:
    """Remove the volumes of a workspace, which no container may use any more; return how many."""
    labels = {"svc.instance": engine.instance_id, WORKSPACE_LABEL: str(workspace_id)}
    found = _named(engine, [f"{name}={value}" for name, value in labels.items()])
    return sum(_remove(engine, name) for name in found)


def workspaces_with_volumes(engine: Engine) -> set[UUID]:
    """Return the workspaces that have volumes of this installation on the engine."""
    found = set()
    for volume in engine.client.volumes.list(
        filters={"label": [f"svc.instance={engine.instance_id}"]}
    ):
        try:
            found.add(UUID((volume.attrs.get("Labels") or {})[WORKSPACE_LABEL]))
        except (KeyError, ValueError):
            continue
    return found


def _named(engine: Engine, labels: list[str]) -> list[str]:
    return [str(volume.name) for volume in engine.client.volumes.list(filters={"label": labels})]


def _is_ours(engine: Engine, name: str, labels: Mapping[str, str]) -> bool:
    try:
        found = engine.client.volumes.get(name).attrs.get("Labels") or {}
    except NotFound:
        return False
    return all(found.get(label) == value for label, value in labels.items())


def _remove(engine: Engine, name: str) -> bool:
    try:
        engine.client.api.remove_volume(name)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 409:
            raise LaunchError(
                "volume-in-use", "A container still uses a volume of the workspace."
            ) from error
        raise
    return True
