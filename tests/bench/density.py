"""``make bench-density``: many workspaces on one machine, each figure beside its floor. Not a test.

``BENCH_ARGS="--number 20"`` is for a quick look; figures that are to be told take 100. By hand
means ``docker network create`` and ``docker run`` of the same image, and ``docker rm -f`` and
``docker network rm``, by as many threads as the service starts workspaces at once. Ours also has a
record for each workspace.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from ipaddress import IPv4Network
from typing import Any

import django
import docker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first
from django.db.models import Count  # noqa: E402

from runs.models import Run  # noqa: E402
from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench.beside import beside  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, log_folder, milliseconds, report  # noqa: E402
from tests.bench.idle_cost import IdleCost, idle_cost  # noqa: E402
from tests.bench.served import OWNER, SHELL, Api, served  # noqa: E402
from tests.stack.worker_process import CommandProcess, eventually  # noqa: E402
from tests.support import queues  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.models import BuildJob, Workspace  # noqa: E402
from workspaces.runtimes.docker.build.build_steps import STEP_NAME  # noqa: E402
from workspaces.runtimes.docker.networks import free_subnets  # noqa: E402

BUILDS = 3
LOOP = "while :; do :; done"
STARTS = 7
COMMANDS = 15


def long_build() -> dict[str, Any]:
    """Return a blueprint whose image keeps one processor busy for minutes."""
    script = f"echo {uuid.uuid4()}; timeout 600 sh -c '{LOOP}' || true"
    return {"harness": {"id": "custom", "install": script, "command": ["true"]}}


@contextmanager
def everything() -> Iterator[Api]:
    """Run API, build worker and run worker as they are installed."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    # With fewer slots, most of the builds that are asked for would wait.
    with served(WORKSPACE_BUILD_QUEUE_PREFETCH=str(BUILDS)) as api, ExitStack() as stack:
        stack.callback(
            queues.purge_and_delete,
            settings.RABBITMQ_URL,
            RUN_REQUESTED.topology(),
            timeout=LONG_WAIT,
        )
        stack.callback(CommandProcess(log_folder() / "runworker.log", "runworker").stop)
        yield api


def started(api: Api, number: int) -> list[dict[str, Any]]:
    """Start workspaces of the image that exists, all at once, and wait until all are ready."""
    answers = [api.start(SHELL) for _ in range(number)]
    until([answer["workspaceId"] for answer in answers], "ready")
    return answers


def until(ids: Iterable[str], expected: str) -> None:
    """Wait until all these workspaces have a status; asks the database, which costs little."""
    wanted = list(ids)
    while True:
        found = dict(
            Workspace.objects.filter(pk__in=wanted)
            .values_list("latest_sandbox__status")
            .annotate(Count("pk"))
        )
        if found.get("failed"):
            raise RuntimeError(f"{found['failed']} workspaces failed")
        if found.get(expected) == len(wanted):
            return
        time.sleep(0.05)


class ByHand:
    """Containers of an image, with the engine's own command line."""

    def __init__(self, image: str) -> None:
        self._program = settings.DOCKER_CLI
        self._env = {**os.environ, "DOCKER_HOST": settings.DOCKER_HOST}
        self._image = image
        self._subnets: dict[str, str] = {}
        self.names: list[str] = []

    def start(self, number: int) -> None:
        """``docker network create`` and ``docker run`` so often, some at a time."""
        new = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(number)]
        self.names += new
        # The engine's own choice ends after some thirty networks.
        pool = IPv4Network(settings.SVC_WORKSPACE_NETWORK_POOL)
        free = free_subnets(pool, _subnets_taken(), start=secrets.randbelow(1 << 16))
        self._subnets = dict(zip(new, map(str, free), strict=False))
        self._all(self._start, new)

    def remove(self) -> None:
        """``docker rm -f`` and ``docker network rm`` of all of them."""
        self._all(self._remove, self.names)
        self.names.clear()

    def _start(self, name: str) -> None:
        label = f"svc.instance={settings.SVC_INSTANCE_ID}"
        subnet = ["--subnet", self._subnets[name]]
        self._docker(["network", "create", "--label", label, *subnet, name])
        options = ["run", "--detach", "--init", "--label", label, "--network", name]
        options += ["--entrypoint", "/bin/sleep", "--name", name]
        self._docker([*options, self._image, "infinity"])

    def _remove(self, name: str) -> None:
        self._docker(["rm", "--force", name])
        self._docker(["network", "rm", name])

    def _all(self, act: Callable[[str], None], names: list[str]) -> None:
        with ThreadPoolExecutor(settings.WORKSPACE_START_CONCURRENCY) as pool:
            list(pool.map(act, names))

    def _docker(self, arguments: list[str]) -> None:
        command = [self._program, *arguments]
        subprocess.run(command, env=self._env, stdout=subprocess.DEVNULL, check=True, timeout=300)


def _subnets_taken() -> list[str]:
    client = docker.DockerClient(settings.DOCKER_HOST, timeout=int(LONG_WAIT))
    with closing(client):
        parts = [
            part
            for network in client.networks.list()
            for part in network.attrs["IPAM"]["Config"] or []
        ]
    return [str(part["Subnet"]) for part in parts]


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compared(
    name: str, ours: float, floor: float, beside: str, target: float | None, *, unit: str = ""
) -> Figure:
    """Return the figure of two durations."""
    ratio = ours / floor
    return Figure(
        f"{name}{unit}",
        milliseconds(ours),
        f"{milliseconds(floor)} ({beside})",
        ratio,
        f"<= {target}x" if target else "",
        target is None or ratio <= target,
    )


# ---------------------------------------------------------------- starts beside builds


def steps_that_loop() -> set[str]:
    """Return the ids of this benchmark's containers in which a build is at its loop."""
    found = set()
    client = docker.DockerClient(settings.DOCKER_HOST, timeout=int(LONG_WAIT))
    with closing(client):
        label = f"svc.instance={settings.SVC_INSTANCE_ID}"
        for container in client.containers.list(filters={"label": label, "name": STEP_NAME}):
            with suppress(docker.errors.APIError):  # it has ended meanwhile
                processes = container.top()["Processes"] or []
                if any(LOOP in " ".join(words) for words in processes):
                    found.add(str(container.id))
    return found


def beside_builds(api: Api) -> list[Figure]:
    """Start an existing image alone, then while builds run."""

    def starts() -> float:
        return statistics.median(
            timed(partial(api.settled, api.start(SHELL), "ready", 0.02)) for _ in range(STARTS)
        )

    starts()
    alone = starts()
    builds = [api.start(long_build(), tag=f"b{number}") for number in range(BUILDS)]
    first = BuildJob.objects.filter(pk__in=[answer["jobId"] for answer in builds], lane="build")
    try:
        with beside(steps_that_loop, BUILDS, what="builds"):
            busy = starts()
    finally:
        for answer in builds:
            api.ask("POST", f"/v1/workspaces/{answer['workspaceId']}/stop", {"ownerUserId": OWNER})
    eventually(lambda: not first.filter(status="running").exists(), what="the builds are stopped")
    return [
        compared(
            f"start of an existing image while {BUILDS} builds run, median of {STARTS}",
            busy,
            alone,
            "the same alone",
            1.5,
        )
    ]


# ---------------------------------------------------------------- many


def run_of_true(api: Api, workspace: str) -> float:
    """Return the median time from a request to the end of its command, as its rows have it."""
    took = []
    for _ in range(COMMANDS):
        body = {
            "ownerUserId": OWNER,
            "workspaceId": workspace,
            "harnessId": "bench",
            "command": {"executable": "true"},
        }
        began = time.perf_counter()
        run = api.ask("POST", "/v1/runs", body)["runId"]
        row = Run.objects.filter(pk=run).values_list("status", flat=True)
        while (status := row.get()) not in Run.TERMINAL:
            time.sleep(0.01)
        assert status == "completed", status
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def many(api: Api, number: int) -> Iterator[Figure]:
    """Start, use, stop and delete many workspaces."""
    first = api.start(SHELL)
    api.settled(first, "ready")
    by_hand = ByHand(BuildJob.objects.get(pk=first["jobId"]).published_digest_reference)
    one = run_of_true(api, first["workspaceId"])
    few = idle_cost([first["runId"]])
    api.connection.close()  # the server has not waited so long; the next request opens another

    by_hand.start(2)
    by_hand.remove()
    floor = timed(partial(by_hand.start, number))
    floor_removal = timed(by_hand.remove)

    answers: list[dict[str, Any]] = []
    ours = timed(lambda: answers.extend(started(api, number)))
    yield compared(
        f"{number} starts at once until all are ready",
        ours,
        floor,
        f"{settings.WORKSPACE_START_CONCURRENCY} at a time: docker network create, docker run",
        1.3,
    )
    yield compared(
        f"run of true with {number} live workspaces, p50",
        run_of_true(api, first["workspaceId"]),
        one,
        "with one",
        1.3,
    )
    run_ids = [first["runId"], *(answer["runId"] for answer in answers)]
    yield from idle(few, idle_cost(run_ids), number)
    api.connection.close()

    ids = [answer["workspaceId"] for answer in answers]

    def end() -> None:
        for workspace in ids:
            api.ask("DELETE", f"/v1/workspaces/{workspace}?ownerUserId={OWNER}")
        while Workspace.objects.filter(pk__in=ids, deleted_at__isnull=True).exists():
            time.sleep(0.05)

    yield compared(
        f"stop and delete of {number}",
        timed(end),
        floor_removal,
        "docker rm -f, docker network rm",
        1.3,
    )


# ---------------------------------------------------------------- idle


def idle(few: IdleCost, many: IdleCost, number: int) -> Iterator[Figure]:
    """Return what each idle workspace takes: memory inside, and processor time."""
    each = few.each_more(many, number)
    yield Figure(
        f"idle workspace, memory inside (PSS), each of {number} more",
        f"{each.mib:.1f} MiB",
        "",
        None,
        "<= 8 MiB",
        each.mib <= 8,
    )
    share = each.inside + each.run_worker
    yield Figure(
        f"idle workspace, processor time inside and of the run worker, each of {number} more",
        f"{share:.3f} % of a core ({each.inside:.3f} % inside)",
        f"run worker with one: {few.run_worker:.2f} %",
        None,
        "<= 0.02 %",
        share <= 0.02,
    )


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="how many workspaces")
    number = parser.parse_args().number

    def measure() -> Iterator[Figure]:
        with everything() as api:
            yield from beside_builds(api)
            yield from many(api, number)

    return report({"density": in_own_database(measure)})


if __name__ == "__main__":
    sys.exit(main())
