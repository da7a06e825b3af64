"""The served system against what a person does by hand: real API, queue, worker, registry, engine.

What is compared alternates, so that a busy machine is busy for both. By hand means the same
``docker`` program on an equal build context that is written already, and nobody waits for anything
between the commands.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import docker
from django.conf import settings

from builds.build_worker_setup import job_runner
from builds.images.context import write_context
from builds.planner import plan
from controlplane.work.models import Heartbeat
from runs.agent_archive import agent_archive
from tests.bench.figures import Figure, log_folder, milliseconds, percentile
from tests.registries.account import docker_config
from tests.stack.free_ports import free_port
from tests.stack.worker_process import (
    ROOT,
    CommandProcess,
    WorkerProcess,
    environment,
    eventually,
)
from tests.support import queues
from tests.support.waiting import LONG_WAIT
from workspaces.blueprint import Blueprint
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.models import BuildJob

REQUESTS = 60
REUSES = 9
BUILDS = 7
OWNER = "usr_bench"
SHELL = {"harness": {"id": "shell"}}
GUNICORN = ("-c", "deploy/gunicorn.conf.py", "controlplane.wsgi")
UNSUPPORTED = {**SHELL, "target": {"runtime": {"family": "k8s"}}}


def real_work() -> dict[str, Any]:
    """Return a blueprint with a layer that takes seconds and that no cache has."""
    script = (
        f"echo {uuid.uuid4()} > /opt/mark\n"
        "for part in 1 2 3; do\n"
        "    head -c 5000000 /dev/urandom | xz -6 > /opt/part.$part\n"
        "done\n"
    )
    return {"harness": {"id": "custom", "install": script, "command": ["true"]}}


@dataclass(frozen=True)
class Api:
    """A client that keeps its connection, as the web app and the SDK do."""

    connection: http.client.HTTPConnection

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the body of a successful answer."""
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content.decode()[:500]}")
        return cast("dict[str, Any]", json.loads(content))

    def start(self, spec: dict[str, Any], tag: str = "latest") -> dict[str, Any]:
        """Ask for a sandbox."""
        names = {"registryId": "default", "repository": "bench/served", "tag": tag}
        return self.ask("POST", "/v1/sandboxes", {"ownerUserId": OWNER, "spec": spec, **names})

    def settled(self, answer: dict[str, Any], expected: str, every: float = 0.01) -> None:
        """Wait until the sandbox has the expected last status, looking ``every`` so many seconds.

        Looking costs the machine some milliseconds each time, which a build would miss.
        """
        while True:
            found = self.ask("GET", f"/v1/sandboxes/{answer['sandboxId']}")
            if found["status"] == expected:
                return
            if found["status"] in {"ready", "failed", "cancelled", "stopped"}:
                raise RuntimeError(f"the sandbox ended {found['status']}: {found.get('error')}")
            time.sleep(every)


@contextmanager
def served(**told: str) -> Iterator[Api]:
    """Run gunicorn and a build worker on the benchmark's own database, queue and instance.

    ``told`` are settings of the worker.
    """
    settings.SVC_INSTANCE_ID = f"bench-{uuid.uuid4().hex[:8]}"
    settings.WORKSPACE_BUILD_QUEUE = f"sandbox-image-builds-{settings.SVC_INSTANCE_ID}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        settings.SVC_DATA_DIR = folder
        stack.callback(
            queues.purge_and_delete,
            settings.RABBITMQ_URL,
            BUILD_REQUESTED.topology(),
            timeout=LONG_WAIT,
        )
        stack.callback(remove_all)
        worker = WorkerProcess(
            log_folder() / "worker.log", max_jobs=None, **{"SVC_DATA_DIR": str(folder), **told}
        )
        stack.callback(worker.stop)
        port = free_port()
        with (log_folder() / "api.log").open("ab") as log:
            api = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", *GUNICORN],
                cwd=ROOT,
                env=environment(SVC_API_PORT=str(port), SVC_BIND_HOST="127.0.0.1"),
                stdout=log,
                stderr=log,
            )
        stack.callback(api.wait)
        stack.callback(api.terminate)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
        stack.callback(connection.close)
        eventually(lambda: _answers(port), what="the API")
        eventually(Heartbeat.objects.exists, what="the worker")
        yield Api(connection)


def run_worker() -> CommandProcess:
    """Start a run worker that sweeps and beats as often as one after ``make up``."""
    return CommandProcess(log_folder() / "runworker.log", "runworker")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def remove_all() -> None:
    """Remove what the benchmark has in the engine."""
    client = docker.DockerClient(settings.DOCKER_HOST, timeout=int(LONG_WAIT))
    with contextlib.closing(client):
        mine = {"label": f"svc.instance={settings.SVC_INSTANCE_ID}"}
        for container in client.containers.list(all=True, filters={**mine}):
            container.remove(force=True, v=True)
        for network in client.networks.list(filters={**mine}):
            network.remove()
        for image in client.images.list(filters={**mine}):
            with contextlib.suppress(docker.errors.APIError):
                client.images.remove(str(image.id), force=True)


class ByHand:
    """The same image with the engine's own command line."""

    def __init__(self, folder: Path) -> None:
        self._program = settings.DOCKER_CLI
        self._folder = folder
        self._env = {
            **os.environ,
            "DOCKER_CONFIG": docker_config(folder / "docker"),
            "DOCKER_HOST": settings.DOCKER_HOST,
            "DOCKER_BUILDKIT": "1",
        }
        self.name = f"{settings.REGISTRY_PUSH_REGISTRY}/bench/by-hand-{uuid.uuid4().hex[:8]}:latest"
        self._label = f"svc.instance={settings.SVC_INSTANCE_ID}"

    def context(self, spec: dict[str, Any]) -> Path:
        """Write the build context of a blueprint."""
        runner = job_runner()
        planned = plan(Blueprint.parse(spec), "auto", runner.catalogue)
        path = self._folder / uuid.uuid4().hex
        write_context(
            planned, path, checkouts={}, agent=agent_archive(), extra_ca=runner.builder.extra_ca
        )
        return path

    def build_and_push(self, context: Path) -> None:
        """``docker build`` and ``docker push``."""
        self._docker("build", "--label", self._label, "--tag", self.name, str(context))
        self._docker("push", self.name)

    def run(self) -> None:
        """``docker run`` of the image, with a process that stays."""
        arguments = ("--detach", "--label", self._label, "--entrypoint", "/bin/sleep")
        self._docker("run", *arguments, self.name, "infinity")

    def forget(self) -> None:
        """Take the name off the image."""
        self._docker("rmi", "--no-prune", self.name)

    def _docker(self, *arguments: str) -> None:
        done = subprocess.run(
            [self._program, *arguments], env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"docker {arguments[0]} failed:\n{done.stderr[-2000:]}")


def start_latency(api: Api) -> list[Figure]:
    """From just before a request is sent to the moment when the database sees the job claimed."""
    took = []
    for number in range(REQUESTS + 5):
        sent = time.time()
        answer = api.start(UNSUPPORTED)
        api.settled(answer, "failed")
        claimed_at = BuildJob.objects.values_list("claimed_at", flat=True).get(pk=answer["jobId"])
        assert claimed_at is not None
        if number >= 5:  # the first ones open connections
            took.append(claimed_at.timestamp() - sent)
    p50, p95 = median(took), percentile(took, 95)
    return [
        Figure(
            f"request to worker start, p50 of {REQUESTS}",
            milliseconds(p50),
            f"p95 {milliseconds(p95)}",
            None,
            "<= 50 ms",
            p50 <= 0.050,
        )
    ]


def reuse(api: Api, by_hand: ByHand) -> list[Figure]:
    """From claim to published when the plan is unchanged, and the cached build and push."""
    api.settled(api.start(SHELL), "ready")
    context = by_hand.context(SHELL)
    by_hand.build_and_push(context)
    ours, floor = [], []
    for number in range(REUSES):
        answer = api.start(SHELL, tag=f"t{number}")
        api.settled(answer, "ready")
        job = BuildJob.objects.get(pk=answer["jobId"])
        assert job.reused
        assert job.claimed_at is not None
        assert job.finished_at is not None
        ours.append((job.finished_at - job.claimed_at).total_seconds())
        started = time.perf_counter()
        by_hand.build_and_push(context)
        floor.append(time.perf_counter() - started)
    by_hand.forget()
    ratio = median(ours) / median(floor)
    return [
        Figure(
            f"unchanged plan, claim to published, median of {REUSES}",
            milliseconds(median(ours)),
            f"{milliseconds(median(floor))} (cached build + push)",
            ratio,
            "<= 0.10x",
            ratio <= 0.1,
        )
    ]


def overhead(api: Api, by_hand: ByHand, builds: int) -> list[Figure]:
    """From request to ready with a layer that has to be built, and build, push and run by hand."""
    ours: list[float] = []
    floor: list[float] = []
    for number in range(builds):
        context = by_hand.context(real_work())

        def serve(tag: str = f"real-{number}") -> None:
            api.settled(api.start(real_work(), tag=tag), "ready", every=0.1)

        def do_by_hand(context: Path = context) -> None:
            by_hand.build_and_push(context)
            by_hand.run()

        # Each goes first as often as the other, as the second one finds a busier disk.
        both: list[tuple[Callable[[], None], list[float]]]
        both = [(serve, ours), (do_by_hand, floor)]
        for work, times in both if number % 2 else both[::-1]:
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        shutil.rmtree(context)
    ratio = median(ours) / median(floor)
    return [
        Figure(
            f"request to ready with a new layer, median of {builds}",
            milliseconds(median(ours)),
            f"{milliseconds(median(floor))} (build + push + run)",
            ratio,
            "<= 1.15x",
            ratio <= 1.15,
        )
    ]


def measure(builds: int) -> list[Figure]:
    """Measure everything that needs the served system, with so many images that are built."""
    with served() as api, tempfile.TemporaryDirectory(prefix="svc-bench-") as folder:
        by_hand = ByHand(Path(folder))
        return [*start_latency(api), *reuse(api, by_hand), *overhead(api, by_hand, builds)]
