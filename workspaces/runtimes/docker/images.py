"""What images an engine has, asked over its API: a program would have to be started each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from docker.errors import ImageNotFound

from workspaces.runtimes.docker.engine_api import EngineConnections


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

    def child_of(self, parent: str, labels: Mapping[str, str]) -> str | None:
        """Return an image that was made of ``parent`` and has these labels; None without one.

        Raises ``LaunchError``.
        """
        filters = {"label": [f"{name}={value}" for name, value in sorted(labels.items())]}
        with self._connections.connect(self._timeout) as engine:
            told = engine.client.api.images(all=True, filters=filters)
        return next((str(each["Id"]) for each in told if each.get("ParentId") == parent), None)

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
