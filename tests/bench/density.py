"""``make bench-density``: many workspaces on one machine, each figure beside its floor. Not a test.

``BENCH_ARGS="--number 20"`` is for a quick look; figures that are to be told take 100. By hand
means ``docker run`` and ``docker rm -f`` of the same image by as many threads as the service starts
workspaces at once. Ours also has a record and a network for each workspace.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first
from django.db.models import Count  # noqa: E402

from controlplane.work import amqp  # noqa: E402
from runs.models import Run  # noqa: E402
from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, log_folder, milliseconds, report  # noqa: E402
from tests.bench.served import OWNER, SHELL, Api, served  # noqa: E402
from tests.stack.worker_process import CommandProcess, eventually  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.models import BuildJob, Workspace  # noqa: E402

BUILDS = 3
STARTS = 7
COMMANDS = 15
IDLE_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


def long_build() -> dict[str, Any]:
    """Return a blueprint whose image keeps one processor busy for minutes."""
    script = f"echo {uuid.uuid4()}; timeout 600 sh -c 'while :; do :; done' || true"
    return {"harness": {"id": "custom", "install": script, "command": ["true"]}}


@contextmanager
def everything() -> Iterator[Api]:
    """Run API, build worker and run worker as they are installed."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served() as api, ExitStack() as stack:
        stack.callback(
            amqp.purge_and_delete,
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
        self.names: list[str] = []

    def start(self, number: int) -> None:
        """``docker run`` so often, some at a time."""
        new = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(number)]
        label = f"svc.instance={settings.SVC_INSTANCE_ID}"
        options = ["run", "--detach", "--init", "--label", label, "--entrypoint", "/bin/sleep"]
        self._all([[*options, "--name", name, self._image, "infinity"] for name in new])
        self.names += new

    def remove(self) -> None:
        """``docker rm -f`` of all of them."""
        self._all([["rm", "--force", name] for name in self.names])
        self.names.clear()

    def _all(self, commands: list[list[str]]) -> None:
        with ThreadPoolExecutor(settings.WORKSPACE_START_CONCURRENCY) as pool:
            list(pool.map(self._docker, commands))

    def _docker(self, arguments: list[str]) -> None:
        command = [self._program, *arguments]
        subprocess.run(command, env=self._env, stdout=subprocess.DEVNULL, check=True, timeout=300)


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
    eventually(lambda: first.filter(status="running").exists(), what="a build runs")
    try:
        busy = starts()
    finally:
        for answer in builds:
            api.ask("POST", f"/v1/workspaces/{answer['workspaceId']}/stop", {"ownerUserId": OWNER})
    eventually(lambda: not first.filter(status="running").exists(), what="the builds are stopped")
    return [
        compared(
            f"start of an existing image while {BUILDS} builds are asked for, median of {STARTS}",
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

    by_hand.start(2)
    floor = timed(partial(by_hand.start, number))
    floor_removal = timed(by_hand.remove) * number / (number + 2)

    answers: list[dict[str, Any]] = []
    ours = timed(lambda: answers.extend(started(api, number)))
    yield compared(
        f"{number} starts at once until all are ready",
        ours,
        floor,
        f"{settings.WORKSPACE_START_CONCURRENCY} at a time: docker run",
        1.3,
    )
    yield compared(
        f"run of true with {number} live workspaces, p50",
        run_of_true(api, first["workspaceId"]),
        one,
        "with one",
        1.3,
    )
    yield from idle([answer["runId"] for answer in answers])

    ids = [answer["workspaceId"] for answer in answers]

    def end() -> None:
        for workspace in ids:
            api.ask("DELETE", f"/v1/workspaces/{workspace}?ownerUserId={OWNER}")
        while Workspace.objects.filter(pk__in=ids, deleted_at__isnull=True).exists():
            time.sleep(0.05)

    yield compared(f"stop and delete of {number}", timed(end), floor_removal, "docker rm -f", 1.3)


# ---------------------------------------------------------------- idle


def idle(run_ids: list[str]) -> Iterator[Figure]:
    """Return what an idle workspace takes: memory inside, and processor time of everything."""
    inside = {pid for run_id in run_ids for pid in processes_in(run_id)}
    ours = {pid for pid in all_pids() if "manage.py runworker" in command_of(pid)}
    time.sleep(5)
    before = {pid: cpu_of(pid) for pid in inside | ours}
    time.sleep(IDLE_SECONDS)
    spent = {pid: cpu_of(pid) - before[pid] for pid in before}
    number = len(run_ids)
    pss = sum(pss_of(pid) for pid in inside) / number / 1024
    yield Figure(
        f"idle workspace, memory inside (PSS), mean of {number}",
        f"{pss:.1f} MiB",
        "",
        None,
        "<= 8 MiB",
        pss <= 8,
    )
    share = sum(spent.values()) / IDLE_SECONDS / number * 100
    within = sum(spent[pid] for pid in inside) / IDLE_SECONDS / number * 100
    yield Figure(
        "idle workspace, processor time inside and of the run worker",
        f"{share:.3f} % of a core ({within:.3f} % inside)",
        "",
        None,
        "<= 0.02 %",
        share <= 0.02,
    )


def processes_in(run_id: str) -> list[int]:
    """Return the processes of a workspace's container."""
    done = subprocess.run(
        [settings.DOCKER_CLI, "top", f"svc-{run_id}", "-eo", "pid"],
        env={**os.environ, "DOCKER_HOST": settings.DOCKER_HOST},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()[1:]]


def all_pids() -> list[int]:
    """Return every process of the machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def command_of(pid: int) -> str:
    """Return the command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time that a process has had; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def pss_of(pid: int) -> int:
    """Return the KiB that a process takes, shared pages by share."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:"))


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
