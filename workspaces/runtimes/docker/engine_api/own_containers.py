"""Containers of ours that run one command for us and are removed after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, ContainerError
from docker.types import LogConfig

from workspaces.runtimes.docker.engine_api.open_engine import Engine

OLDEST_SECONDS = 3600.0
"""Longer than such a container runs."""


def printed_by(
    engine: Engine, image: str, command: Sequence[str], *, purpose: str, **how: Any
) -> bytes:
    """Return what a command prints in a container of its own.

    Raises ``ContainerError`` when it fails, and what the engine raises.
    """
    with suppress(APIError):  # what cannot be removed is in nobody's way
        remove_left(engine, purpose)
    container = engine.client.containers.create(
        image,
        list(command),
        labels={"svc.instance": engine.instance_id, "svc.purpose": purpose},
        cap_drop=["ALL"],
        # What others keep cannot be read back from every engine.
        log_config=LogConfig(type=LogConfig.types.JSON),
        use_config_proxy=False,
        **how,
    )
    try:
        container.start()
        code = container.wait(timeout=engine.timeout)["StatusCode"]
        if code:
            said: Any = container.logs(stdout=False, stderr=True)
            raise ContainerError(container, code, list(command), image, said)
        return container.logs(stdout=True, stderr=False)
    finally:
        engine.remove_container(container)


def remove_left(engine: Engine, purpose: str, *, oldest: float = OLDEST_SECONDS) -> None:
    """Remove what workers that were killed have left more than ``oldest`` seconds ago."""
    labels = [f"svc.instance={engine.instance_id}", f"svc.purpose={purpose}"]
    for found in engine.client.api.containers(all=True, filters={"label": labels}):
        left = engine.named(str(found["Id"]))
        if left is not None and time.time() - int(found["Created"]) >= oldest:
            engine.remove_container(left)
