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
        self._images: list[str] = []
        self._looked_at = 0.0

    def write(self) -> str:
        """Ask and write; return what the engine calls itself. Raises ``LaunchError``."""
        facts = self._facts()
        if not self._looked_at or time.monotonic() - self._looked_at > LOOK_AT_IMAGES_SECONDS:
            pulled = self._compiler.pulled_images(self._labels)
            self._images = sorted({image.repository for image in pulled})
            self._looked_at = time.monotonic()
        Engine.objects.heard(
            self._name,
            engine_id=facts.engine_id,
            memory_bytes=facts.memory_bytes,
            cpus=facts.cpus,
            images=self._images,
        )
        return facts.engine_id
