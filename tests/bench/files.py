"""Files in and out of a workspace against ``docker cp`` of the same container, in the same run.

What is measured is what a client of the API sees: HTTP, hashes and syncs included.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import docker
from django.test import override_settings

from runs.agent_archive import agent_archive, agent_digest
from tests.bench.figures import Figure, log_folder
from tests.conftest import OWNER
from tests.runs.ready import ready_attempt
from tests.stack.api_process import ApiProcess, api_process
from tests.workspaces import conftest as launching
from workspaces.models import RuntimeInstance
from workspaces.runtimes.docker import DockerAdapter

SIZE = 1 << 30
LARGE = 5 << 30
ROUNDS = 3
TARGET = 0.5
MOST_GROWN = 64 << 20


@contextlib.contextmanager
def _workspace() -> Iterator[tuple[UUID, str, str]]:
    """Launch a workspace; give the boot run, the installation and the container."""
    client = docker.DockerClient(base_url=launching.DOCKER_HOST, timeout=120)
    instance, run_id = str(uuid4()), uuid4()
    dockerfile = launching.DOCKERFILE.encode()
    context = launching.tar_of(Dockerfile=dockerfile, svc_agent=agent_archive())
    image = launching.published(client, context, tag=agent_digest()[:32])
    adapter = DockerAdapter(launching.DOCKER_HOST, instance)
    launcher = launching.Launcher(adapter, client, image, instance)
    runtime = launcher.launch(launcher.request(run_id, memory_mb=1024))
    try:
        yield run_id, instance, runtime.resource_id
    finally:
        adapter.remove(run_id)
        client.close()


def measure(*, quick: bool = False) -> Iterator[Figure]:
    """Give the figures of both directions and their memory, unless ``quick`` also of 5 GiB."""
    times: dict[str, list[float]] = {name: [] for name in ("upload", "in", "download", "out")}
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        _workspace() as (run_id, instance, container),
        override_settings(SVC_INSTANCE_ID=instance),
        api_process(log_folder() / "files.log") as api,
    ):
        workspace_id = _rows(run_id)
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
        inside = f"{container}:/workspace/repo/copied"
        ask = partial(_ask, api.port, workspace_id)
        ask("PUT", "small", io.BytesIO(b"content"))
        before = _peak_bytes(api)
        for _ in range(ROUNDS):
            with source.open("rb") as content:
                times["upload"].append(_seconds(lambda: ask("PUT", "uploaded", content)))
            times["in"].append(_seconds(lambda: _copy(str(source), inside)))
            with target.open("wb") as file:
                times["download"].append(_seconds(lambda: ask("GET", "uploaded", None, file)))
            times["out"].append(_seconds(lambda: _copy(inside, str(target))))
        growth = {"1 GiB": _peak_bytes(api) - before}
        if not quick:
            ask("PUT", "large", _Zeros(LARGE))
            with Path(os.devnull).open("wb") as nowhere:
                ask("GET", "large", None, nowhere)
            growth["5 GiB"] = _peak_bytes(api) - before
    for name, floor in (("upload", "in"), ("download", "out")):
        ours, theirs = median(times[name]), median(times[floor])
        ratio = theirs / ours
        what = f"{name} of 1 GiB over HTTP, beside `docker cp`"
        yield Figure(what, _speed(ours), _speed(theirs), ratio, f">= {TARGET}x", ratio >= TARGET)
    for what, bytes_ in growth.items():
        yield Figure(
            f"growth of the API's memory by {what} there and back",
            f"{bytes_ / (1 << 20):.0f} MiB",
            "",
            None,
            "< 64 MiB",
            bytes_ < MOST_GROWN,
        )


def _rows(run_id: UUID) -> UUID:
    """Write the rows of a workspace whose container runs; return its id."""
    attempt = ready_attempt()
    RuntimeInstance.objects.filter(attempt=attempt).update(run_id=run_id)
    return attempt.workspace_id


class _Zeros:
    """So many bytes, to be read like a file."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, count: int) -> bytes:
        found = bytes(min(count, self._left))
        self._left -= len(found)
        return found


def _ask(
    port: int, workspace_id: UUID, method: str, path: str, body: Any, target: Any = None
) -> None:
    """Put ``body`` at a path of the workspace, or write what is there to ``target``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600, blocksize=1 << 18)
    with contextlib.closing(connection):
        query = urlencode({"ownerUserId": OWNER, "path": path})
        connection.request(method, f"/v1/workspaces/{workspace_id}/files?{query}", body)
        answer = connection.getresponse()
        if answer.status not in (200, 201):
            raise RuntimeError(answer.read().decode())
        if target is not None:
            shutil.copyfileobj(answer, target, 1 << 20)


def _peak_bytes(api: ApiProcess) -> int:
    """Return the most memory that the process which serves has ever had."""
    (pid,) = api.worker_pids()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


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
