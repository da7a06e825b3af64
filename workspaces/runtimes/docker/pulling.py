"""Getting an image into the engine, for as long as somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from controlplane.logging import carried
from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import TICK_SECONDS, Engine


def pull(
    image: str,
    *,
    name: str,
    connect: Callable[[], AbstractContextManager[Engine]],
    auth: Mapping[str, str] | None,
    proceed: Callable[[], None],
) -> None:
    """Pull an image by its digest; raises ``image-pull-failed``, and what ``proceed`` raises.

    A pull can be silent for long, so it has a thread (of this ``name``) and a connection of its own
    while this thread asks ``proceed`` again and again. A pull that is given up ends with its next
    sign of life.
    """
    faults: list[str] = []
    cancelled = threading.Event()

    def run() -> None:
        try:
            with connect() as engine:
                auth_config = dict(auth) if auth else None
                events = engine.client.api.pull(
                    image, stream=True, decode=True, auth_config=auth_config
                )
                for event in events:
                    if cancelled.is_set():
                        return
                    if "error" in event:
                        faults.append(boot.one_line(str(event["error"])))
                        return
                if not engine.has_image(image):
                    faults.append("the engine has no image with that digest afterwards")
        except LaunchError as error:
            faults.append(error.message)

    thread = threading.Thread(target=carried(run), name=name, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            proceed()
            thread.join(TICK_SECONDS)
    finally:
        cancelled.set()
    if faults:
        raise LaunchError(
            "image-pull-failed", f"The image {image} could not be pulled: {faults[0]}"
        )
