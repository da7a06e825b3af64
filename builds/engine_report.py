"""What a build worker writes of its engine: that it answers, and what it has."""

from __future__ import annotations

import time
from collections.abc import Callable

from builds.images.compiler import Compiler
from workspaces.models import Engine
from workspaces.runtimes.base import EngineFacts

LOOK_AT_IMAGES_SECONDS = 60.0


class EngineReport:
    """Writes the row of the engine ``name``, each time that the engine answers."""

    def __init__(
        self, name: str, facts: Callable[[], EngineFacts], compiler: Compiler, *, instance_id: str
    ) -> None:
        self._name = name
        self._facts = facts
        self._compiler = compiler
        self._labels = {"svc.instance": instance_id}
        self._images: list[str] | None = None
        self._looked_at = 0.0

    def write(self) -> str:
        """Ask and write; return what the engine calls itself. Raises ``LaunchError``."""
        facts = self._facts()
        # Now: an engine that has many images to list is not lost meanwhile.
        Engine.objects.heard(
            self._name,
            engine_id=facts.engine_id,
            memory_bytes=facts.memory_bytes,
            cpus=facts.cpus,
        )
        images = self._new_images()
        if images is not None:
            Engine.objects.has_images(self._name, images)
            self._images = images
        return facts.engine_id

    def _new_images(self) -> list[str] | None:
        """Return its images' repositories now and then, where they changed: there may be many."""
        now = time.monotonic()
        if self._looked_at and now - self._looked_at <= LOOK_AT_IMAGES_SECONDS:
            return None
        self._looked_at = now
        pulled = self._compiler.pulled_images(self._labels)
        found = sorted({image.repository for image in pulled})
        return None if found == self._images else found
