"""How much disk workspaces take, counted by a container of ours that may read and nothing else.

It is given what an engine with overlay2 has on the disk for a running container: what was written
beside its image, and its volumes. It counts blocks, so that a file with holes is as large as what
is in it, and is killed when it takes too long; the engine's own size of a container does neither.
Nothing is asked of the workspace, which could say anything.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from uuid import UUID, uuid4

import structlog
from docker.models.containers import Container
from docker.types import LogConfig, Mount

from workspaces.runtimes.docker.engine_api import (
    Engine,
    container_name,
    is_of_a_launch,
    own_containers,
)

PURPOSE = "disks"
"""Longer than a container of ours counts."""
TICK_SECONDS = 0.1
_PROGRAM = """
count() { nice -n 19 timeout "$EACH" du -c -s -x -B1 "$@" 2>/dev/null; }
for each in /disks/*; do
    echo "${each##*/} $(count "$each"/* | sed -n 's/[[:space:]]total$//p')"
done
"""

log = structlog.get_logger(__name__)


def measured(
    engine: Engine,
    run_ids: Collection[UUID],
    *,
    image: str,
    seconds: float,
    stopped: threading.Event,
) -> dict[UUID, int]:
    """Return how many bytes of the disk each of these runs takes, as far as it could be measured.

    Left out are runs whose container does not run or for which the engine names no place on its
    disk, and those that took longer than ``seconds``. ``image`` has a shell and the core utilities.
    Raises what the engine raises; ``stopped`` ends it early.
    """
    places = {run_id: _places(engine, run_id) for run_id in run_ids}
    asked = [run_id for run_id, found in places.items() if found]
    if not asked:
        return {}
    mounts = [
        Mount(f"/disks/{number}/{place}", source, type="bind", read_only=True)
        for number, run_id in enumerate(asked)
        for place, source in enumerate(places[run_id])
    ]
    told = _counted(engine, image, mounts, seconds, len(asked), stopped)
    return {
        asked[int(number)]: int(size)
        for number, size in (line.split(" ", 1) for line in told.splitlines() if " " in line)
        if size.isdigit()
    }


def _places(engine: Engine, run_id: UUID) -> list[str]:
    """Return the folders of the engine's machine that hold what a run has written."""
    container = engine.named(container_name(run_id))
    if container is None or not is_of_a_launch(container, engine.instance_id):
        return []
    if container.status not in ("running", "paused"):
        return []
    layer = ((container.attrs.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    volumes = [
        mount["Source"]
        for mount in container.attrs.get("Mounts") or ()
        if mount.get("Type") == "volume" and mount.get("Source")
    ]
    return [*([layer] if layer else []), *volumes]


def _counted(
    engine: Engine,
    image: str,
    mounts: Sequence[Mount],
    seconds: float,
    count: int,
    stopped: threading.Event,
) -> str:
    own_containers.remove_left(engine, PURPOSE)
    if not engine.has_image(image):
        engine.client.images.pull(image)
    container = engine.client.containers.create(
        image,
        ["-c", _PROGRAM],
        entrypoint="/bin/sh",
        user="0:0",
        name=f"svc-disks-{engine.instance_id}-{uuid4().hex[:8]}",
        labels={"svc.instance": engine.instance_id, "svc.purpose": PURPOSE},
        environment={"EACH": str(math.ceil(seconds)), "LC_ALL": "C"},
        mounts=list(mounts),
        network_mode="none",
        userns_mode="host",
        cap_drop=["ALL"],
        cap_add=["DAC_READ_SEARCH"],
        security_opt=["no-new-privileges", "label=disable"],
        read_only=True,
        mem_limit="256m",
        pids_limit=32,
        cpu_shares=2,
        nano_cpus=500_000_000,
        log_config=LogConfig(type=LogConfig.types.JSON),
        use_config_proxy=False,
    )
    try:
        container.start()
        _wait(container, seconds * count + engine.timeout, stopped)
        return container.logs(stdout=True, stderr=False).decode("ascii", "replace")
    finally:
        engine.remove_container(container)


def _wait(container: Container, seconds: float, stopped: threading.Event) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stopped.wait(TICK_SECONDS):
        container.reload()
        if container.status in ("exited", "dead"):
            return
