"""``make bench-cluster``: workspaces as Pods, and placement over many engines. Not a test.

Each figure of Pods stands beside the cluster's own way, taken in turns with it: a bare Pod of the
same image until it is Ready, an exec of ``true`` and the frames of an exec over a bare socket. The
cluster is the one that the tests use; the connections that are dropped are cut by a relay before
its API server.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

import docker  # noqa: E402 - settings first
from django.db import connection  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402

from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, milliseconds, report  # noqa: E402
from tests.bench.raw_exec import output_bytes  # noqa: E402
from tests.factories import make_job  # noqa: E402
from tests.registries.account import PUSH_REGISTRY  # noqa: E402
from tests.stack import cluster  # noqa: E402
from tests.support.engines import GIB, STALE, make_engine  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from tests.workspaces.conftest import DOCKER_HOST, Launcher, agent_image  # noqa: E402
from tests.workspaces.runtimes.dropped_connections import Dropped, with_dropped  # noqa: E402
from tests.workspaces.runtimes.pod_launcher import PodLauncher  # noqa: E402
from workspaces.files.services import WorkspaceFiles  # noqa: E402
from workspaces.lifecycle.placement import place_waiting  # noqa: E402
from workspaces.models import BuildJob  # noqa: E402
from workspaces.runtimes.base import LaunchRequest  # noqa: E402
from workspaces.runtimes.kubernetes.cluster import PODS, Document  # noqa: E402
from workspaces.runtimes.kubernetes.pods import pod_name  # noqa: E402

STARTS = 7
CALLS = 100
ROUNDS = 5
BULK_BYTES = 64 * 2**20
BULKS = 5
DROPS = 1000
WORKSPACES = 1000
ENGINES = 10
BIG_FILE = "/var/tmp/big"


@contextmanager
def pods() -> Iterator[PodLauncher]:
    """An installation whose workspaces are Pods; all that it made is gone afterwards."""
    with (
        closing(docker.DockerClient(base_url=DOCKER_HOST, timeout=int(LONG_WAIT))) as client,
        tempfile.TemporaryDirectory() as folder,
        cluster.namespace(PUSH_REGISTRY, Path(folder)) as place,
    ):
        plain = Launcher(None, client, agent_image(client), str(uuid.uuid4()))  # type: ignore[arg-type]
        made = PodLauncher.of(place, plain)
        try:
            yield made
        finally:
            made.clean_up()


def launched(pods: PodLauncher) -> LaunchRequest:
    """Have a workspace that is ready."""
    request = pods.request(outbound=True, timeout=LONG_WAIT)
    pods.launch(request)
    return request


# --------------------------------------------------------------------------------------- starts


def bare_pod(pods: PodLauncher) -> None:
    """Have a Pod of the same image, and wait until it is Ready."""
    name = f"bare-{uuid.uuid4().hex[:8]}"
    specification: Document = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "workspace",
                "image": pods.adapter.options.image(pods.image),
                "command": ["/bin/sleep", "infinity"],
            }
        ],
    }
    if pods.place.pull_secret:
        specification["imagePullSecrets"] = [{"name": pods.place.pull_secret}]
    admin = pods.place.admin
    labels = {"svc.instance": pods.instance_id}
    pod = admin.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": specification})
    while not is_ready(pod):
        version = pod["metadata"]["resourceVersion"]
        pod = next(admin.watch(PODS, name, version, seconds=round(LONG_WAIT)))


def is_ready(pod: Document) -> bool:
    """Whether the cluster says that a Pod is Ready."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def starts(pods: PodLauncher) -> Iterator[Figure]:
    """Measure starts of an unchanged workspace."""
    launched(pods)  # the first one has the node get the image
    ours, floor = in_turns(lambda: launched(pods), lambda: bare_pod(pods), STARTS)
    yield compared(
        f"start of an unchanged workspace until ready, median of {STARTS}",
        ours,
        floor,
        "a bare Pod until Ready",
        1.3,
    )


# ------------------------------------------------------------------------------ calls and bulk


def calls(pods: PodLauncher) -> Iterator[Figure]:
    """Measure calls of the agent, and of the ones behind them."""
    request = launched(pods)
    place = (pods.adapter.cluster.access, pods.place.name, pod_name(request.run_id))

    def call() -> None:
        answer = pods.adapter.call_agent(request.run_id, ("status",), timeout=LONG_WAIT)
        if answer.exit_code:
            raise RuntimeError(f"the agent did not answer well: {answer}")

    def raw() -> None:
        output_bytes(*place, ["/bin/true"])

    call()
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(ROUNDS):
        for action, times in ((call, ours), (raw, floor)):
            times.extend(seconds_of(action) for _ in range(CALLS // ROUNDS))
    yield compared(
        f"call of the agent, request to answer, p50 of {CALLS}",
        ours,
        floor,
        "an exec of true over a bare socket",
        1.2,
    )


def bulk(pods: PodLauncher) -> Iterator[Figure]:
    """Measure how fast a file comes out of a workspace."""
    request = launched(pods)
    place = (pods.adapter.cluster.access, pods.place.name, pod_name(request.run_id))
    make = f"head -c {BULK_BYTES} /dev/urandom >{BIG_FILE}; chmod 0644 {BIG_FILE}"
    output_bytes(*place, ["/bin/sh", "-c", make])
    files = WorkspaceFiles(adapter=pods.adapter, run_id=request.run_id, by="", request_id="")

    def download() -> None:
        with closing(files.open("read", BIG_FILE.encode())) as call:
            size = int(call.answer()["size"])
            got = sum(map(len, call.content(size)))
        if got != BULK_BYTES:
            raise RuntimeError(f"{got} bytes came of {BULK_BYTES}")

    def raw() -> None:
        got = output_bytes(*place, ["/bin/cat", BIG_FILE])
        if got != BULK_BYTES:
            raise RuntimeError(f"{got} bytes came of {BULK_BYTES}")

    ours, floor = in_turns(download, raw, BULKS)
    rates = [BULK_BYTES / 2**20 / median(times) for times in (ours, floor)]
    yield Figure(
        f"{BULK_BYTES >> 20} MiB out of a workspace, median of {BULKS}",
        f"{rates[0]:.0f} MiB/s",
        f"{rates[1]:.0f} MiB/s (frames of a bare exec)",
        rates[0] / rates[1],
        ">= 0.5x",
        rates[0] / rates[1] >= 0.5,
    )


def in_turns(ours: Any, floor: Any, number: int) -> tuple[list[float], list[float]]:
    """Return how many seconds each takes, one after the other, so many times."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(number):
        for action, times in zip((ours, floor), taken, strict=True):
            times.append(seconds_of(action))
    return taken


def seconds_of(action: Any) -> float:
    """Return how long it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compared(
    name: str, ours: Sequence[float], floor: Sequence[float], what: str, most: float
) -> Figure:
    """Return the figure of the medians of two lists of seconds."""
    ratio = median(ours) / median(floor)
    return Figure(
        name,
        milliseconds(median(ours)),
        f"{milliseconds(median(floor))} ({what})",
        ratio,
        f"<= {most}x",
        ratio <= most,
    )


# --------------------------------------------------------------------------- drops, placement


def drops(pods: PodLauncher, number: int) -> Iterator[Figure]:
    """Count what is lost or comes twice when connections are dropped."""
    found: Dropped = with_dropped(pods, number)
    wrong = found.lost + found.twice
    yield Figure(
        f"bytes lost or duplicated, {found.drops:,} watches and execs dropped",
        f"{wrong} of {found.received:,}",
        "",
        None,
        "0",
        not wrong,
    )


def placement() -> Iterator[Figure]:
    """Count the queries that place many workspaces over many engines."""
    for number in range(ENGINES):
        make_engine(f"engine-{number}", memory=200 * GIB)
    first = make_job()
    jobs = [
        BuildJob(
            attempt=first.attempt, registry_id="default", repository="r", tag="t", max_attempts=3
        )
        for _ in range(WORKSPACES - 1)
    ]
    BuildJob.objects.bulk_create(jobs)
    began = time.perf_counter()
    with CaptureQueriesContext(connection) as captured:
        placed = place_waiting(stale=STALE)
    took = time.perf_counter() - began
    if placed != WORKSPACES:
        raise RuntimeError(f"only {placed} were placed")
    yield Figure(
        f"placement of {WORKSPACES:,} workspaces over {ENGINES} engines",
        f"{len(captured)} queries, {milliseconds(took)}",
        "",
        None,
        "<= 20 queries",
        len(captured) <= 20,
    )


def main() -> int:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drops", type=int, default=DROPS, help="connections that are dropped")
    options = parser.parse_args()
    if not (place := cluster.where()):
        sys.stderr.write("There is no cluster: neither KUBECONFIG nor a kit to start one.\n")
    with contextlib.ExitStack() as stack:
        made: list[PodLauncher] = []

        def there() -> PodLauncher:
            if not made:
                if not place:
                    raise RuntimeError("there is no cluster")
                made.append(stack.enter_context(pods()))
            return made[0]

        measures = {
            "starts": lambda: starts(there()),
            "calls": lambda: calls(there()),
            "bulk": lambda: bulk(there()),
            "drops": lambda: drops(there(), options.drops),
            "placement": in_own_database(placement),
        }
        return report(measures)


if __name__ == "__main__":
    sys.exit(main())
