"""Files in and out of a workspace against ``docker cp`` of the same container, in the same run.

What is measured is the way from the API's process into the workspace and back, hashes and syncs
included; an upload is given the body as the server has it, complete and on the disk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from uuid import UUID, uuid4

import django
import docker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from runs.agent_archive import agent_archive, agent_digest  # noqa: E402
from tests.bench.figures import Figure, report  # noqa: E402
from tests.workspaces import conftest as launching  # noqa: E402
from workspaces.files.services import WorkspaceFiles  # noqa: E402
from workspaces.runtimes.docker import DockerAdapter  # noqa: E402

SIZE = 256 << 20
ROUNDS = 3
TARGET = 0.5


@contextlib.contextmanager
def _workspace() -> Iterator[tuple[DockerAdapter, UUID, str]]:
    """Launch a workspace; give the adapter, the boot run and the container."""
    client = docker.DockerClient(base_url=launching.DOCKER_HOST, timeout=120)
    instance, run_id = str(uuid4()), uuid4()
    dockerfile = launching.DOCKERFILE.encode()
    context = launching.tar_of(Dockerfile=dockerfile, svc_agent=agent_archive())
    image = launching._publish(client, context, tag=agent_digest()[:32])
    adapter = DockerAdapter(launching.DOCKER_HOST, instance)
    launcher = launching.Launcher(adapter, client, image, instance)
    runtime = launcher.launch(launcher.request(run_id, memory_mb=1024))
    try:
        yield adapter, run_id, runtime.resource_id
    finally:
        adapter.remove(run_id)
        client.close()


def measure() -> Iterator[Figure]:
    """Give the figures of both directions."""
    times: dict[str, list[float]] = {name: [] for name in ("upload", "in", "download", "out")}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, _workspace() as found:
        adapter, run_id, container = found
        files = WorkspaceFiles(adapter=adapter, run_id=run_id, by="", request_id="")
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
        inside = f"{container}:/workspace/repo/copied"

        def upload() -> None:
            with source.open("rb") as content:
                files.store("write", b"uploaded", content)

        def download() -> None:
            call = files.open("read", b"uploaded")
            with target.open("wb") as file, contextlib.closing(call):
                call.answer()
                for piece in call.content():
                    file.write(piece)

        for _ in range(ROUNDS):
            times["upload"].append(_seconds(upload))
            times["in"].append(_seconds(lambda: _copy(str(source), inside)))
            times["download"].append(_seconds(download))
            times["out"].append(_seconds(lambda: _copy(inside, str(target))))
    for name, floor in (("upload", "in"), ("download", "out")):
        ours, theirs = median(times[name]), median(times[floor])
        ratio = theirs / ours
        what = f"{name} of 256 MiB, beside `docker cp`"
        yield Figure(what, _speed(ours), _speed(theirs), ratio, f">= {TARGET}x", ratio >= TARGET)


def _seconds(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _copy(source: str, target: str) -> None:
    program = os.environ.get("DOCKER_CLI", "docker")
    command = [program, "-H", launching.DOCKER_HOST, "cp", source, target]
    subprocess.run(command, check=True, capture_output=True)


def _speed(seconds: float) -> str:
    return f"{(SIZE >> 20) / seconds:.0f} MiB/s"


if __name__ == "__main__":
    sys.exit(report({"files": measure}))
