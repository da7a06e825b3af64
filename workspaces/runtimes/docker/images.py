"""What images an engine has, asked over its API: a program would have to be started each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from docker.errors import ImageNotFound

from workspaces.runtimes.docker.engine_api import EngineConnections

STEP_LABEL = "svc.step"
"""On the image that a step of a build became: a key of all that decided it but its parent. Images
that are made of that one by hand have it too.
"""


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image in the engine, with its names and what registries know it as."""

    image_id: str
    names: tuple[str, ...]
    """Each as ``repository:tag``, with the registry in front."""
    digests: tuple[str, ...]
    """Each as ``repository@sha256:…``, with the registry in front."""
    created_at: datetime


class ImageList:
    """Asks one engine for its images. Safe to use from several threads."""

    def __init__(self, docker_host: str, timeout: float) -> None:
        self._connections = EngineConnections(docker_host, "")
        self._timeout = timeout

    def listed(self, labels: Mapping[str, str]) -> list[ListedImage]:
        """Return the images that have all these labels; raises ``LaunchError``."""
        filters = {"label": [f"{name}={value}" for name, value in sorted(labels.items())]}
        with self._connections.connect(self._timeout) as engine:
            told = engine.client.api.images(filters=filters)
        return [
            ListedImage(
                str(image["Id"]),
                tuple(name for name in image["RepoTags"] or () if name != "<none>:<none>"),
                tuple(name for name in image["RepoDigests"] or () if name != "<none>@<none>"),
                datetime.fromtimestamp(image["Created"], UTC),
            )
            for image in told
        ]

    def made_by_steps(self) -> dict[tuple[str, str], str]:
        """Return the images that steps of builds made, by what they were made of and their key.

        Of several the oldest, so that all builds go on with the same one. Raises ``LaunchError``.
        """
        with self._connections.connect(self._timeout) as engine:
            told = engine.client.api.images(all=True, filters={"label": [STEP_LABEL]})
        told.sort(key=lambda each: (each["Created"], each["Id"]), reverse=True)
        return {(each["ParentId"], each["Labels"][STEP_LABEL]): str(each["Id"]) for each in told}

    def give_to_parent(self, name: str) -> None:
        """Have a name mean what its image was made of; raises ``LaunchError``.

        An image goes with its last name. This one stays, until unnamed images are pruned.
        """
        with self._connections.connect(self._timeout) as engine:
            try:
                parent = engine.client.images.get(name).attrs.get("Parent")
            except ImageNotFound:
                return
            if parent:
                repository, _, tag = name.rpartition(":")
                engine.client.api.tag(parent, repository, tag)

    def containers_named(self, prefix: str) -> list[str]:
        """Return the names of all containers that begin like this; raises ``LaunchError``."""
        with self._connections.connect(self._timeout) as engine:
            told = engine.client.api.containers(all=True, filters={"name": f"^/{prefix}"})
        names = [str(name).removeprefix("/") for each in told for name in each["Names"] or ()]
        return [name for name in names if name.startswith(prefix)]

    def id_of(self, reference: str) -> str | None:
        """Return the id of an image, None when the engine lacks it; raises ``LaunchError``."""
        with self._connections.connect(self._timeout) as engine:
            try:
                return str(engine.client.images.get(reference).id)
            except ImageNotFound:
                return None
