"""``make bench-operate``: stopping, starting, memory and reconciling, in one run. Not a test.

By hand means ``docker stop`` and ``docker rm``, and ``docker run`` of the same image, whose first
process is the engine's own ``docker-init`` with a ``sleep`` that ends at once when it is told to.
Ours also completes the records and gives each workspace a network of its own; what that takes is
shown by a second floor, ``docker network create`` and ``docker run`` in it. What is compared
alternates, and the engine has a moment to finish what nobody waits for.

The thousand workspaces are rows; the engine that answers for them is a server that has their list
ready, so that the figure is that of our part and of the transfer.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import socketserver
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first
from django.db import connection  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402

from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench import warm  # noqa: E402
from tests.bench.by_hand import ByHand  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, log_folder, milliseconds, report  # noqa: E402
from tests.bench.served import OWNER, SHELL, Api, run_worker, served  # noqa: E402
from tests.runs.ready import ready_attempts  # noqa: E402
from tests.stack.free_ports import free_port  # noqa: E402
from tests.stack.worker_process import CommandProcess, eventually  # noqa: E402
from tests.support import queues  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.lifecycle.reconciler import Orphans, reconcile  # noqa: E402
from workspaces.models import (  # noqa: E402
    Attempt,
    BuildJob,
    Workspace,
)
from workspaces.runtimes.docker import DockerAdapter  # noqa: E402

ROUNDS = 9
WORKSPACES = 1_000
PASSES = 5
IDLE_SECONDS = 15
SETTLE_SECONDS = 0.5
LOOK_SECONDS = 0.005
MEMORY_MIB = 450


# ---------------------------------------------------------------- stop and start


def _stop_and_start(api: Api) -> list[Figure]:
    first = api.start(SHELL)
    api.settled(first, "ready")
    image = BuildJob.objects.get(pk=first["jobId"]).published_digest_reference
    hands = [ByHand(image), ByHand(image, network=True)]
    for hand in hands:
        hand.start()
    workspace = f"/v1/workspaces/{first['workspaceId']}"
    shown = Workspace.objects.filter(pk=first["workspaceId"]).values_list(
        "latest_sandbox__status", flat=True
    )

    def ask(what: str, expected: str) -> Callable[[], None]:
        def act() -> None:
            api.ask("POST", f"{workspace}/{what}", {"ownerUserId": OWNER})
            # Asking the API all the time would take a processor from those who work.
            while (status := shown.get()) != expected:
                if status == "failed":
                    raise RuntimeError("the workspace failed")
                time.sleep(LOOK_SECONDS)
            found = api.ask("GET", workspace)["status"]
            assert found == expected, found

        return act

    ours = {"stop": ask("stop", "stopped"), "start": ask("start", "ready")}
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(-1, ROUNDS):  # the first round opens connections
        for what in ("stop", "start"):
            works = [ours[what], *(hand.stop if what == "stop" else hand.start for hand in hands)]
            order = list(enumerate(works))
            for index, work in order if number % 2 else order[::-1]:
                time.sleep(SETTLE_SECONDS)
                began = time.perf_counter()
                work()
                if number >= 0:
                    times.setdefault((what, index), []).append(time.perf_counter() - began)
                if index and what == "stop":
                    hands[index - 1].tidy()
    for hand in hands:
        hand.stop()
        hand.tidy()
    stop, start = ("stop, request to stopped", "start of an unchanged workspace, request to ready")
    return [
        _compared(stop, (times["stop", 0], times["stop", 1]), "docker stop + rm", 1.2),
        _compared(start, (times["start", 0], times["start", 1]), "docker run", 1.3),
        _compared(
            "the same start, beside one with a network of its own",
            (times["start", 0], times["start", 2]),
            "docker network create + run",
            None,
        ),
    ]


def _compared(
    what: str, times: tuple[list[float], list[float]], beside: str, target: float | None
) -> Figure:
    ours, floor = (median(each) for each in times)
    ratio = ours / floor
    return Figure(
        f"{what}, median of {ROUNDS}",
        milliseconds(ours),
        f"{milliseconds(floor)} ({beside})",
        ratio,
        f"<= {target}x" if target else "",
        target is None or ratio <= target,
    )


# ---------------------------------------------------------------- memory


def _memory() -> Figure:
    """Return what all of our processes take when nothing happens."""
    time.sleep(IDLE_SECONDS)
    found = {pid: _command(pid) for pid in _below(os.getpid())}
    ours = {
        pid: name
        for pid, name in found.items()
        if any(word in name for word in ("gunicorn", "manage.py"))
    }
    pss = sum(_kib(pid, "Pss") for pid in ours) / 1024
    rss = sum(_kib(pid, "Rss") for pid in ours) / 1024
    return Figure(
        f"memory of {len(ours)} idle processes: API, build worker, run worker, SSH gateway (PSS)",
        f"{pss:.0f} MiB",
        f"RSS {rss:.0f} MiB",
        None,
        f"<= {MEMORY_MIB} MiB",
        pss <= MEMORY_MIB,
    )


def _below(root: int) -> list[int]:
    """Return the ids of all processes that descend from ``root``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found, new = [], [root]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _kib(pid: int, member: str) -> int:
    told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{member}:\s+(\d+) kB$", told, re.MULTILINE)
    assert found
    return int(found[1])


@contextmanager
def _all_processes() -> Iterator[Api]:
    """Run everything that an installation runs."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served() as api, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        stack.callback(
            queues.purge_and_delete,
            settings.RABBITMQ_URL,
            RUN_REQUESTED.topology(),
            timeout=LONG_WAIT,
        )
        stack.callback(run_worker().stop)
        gateway = CommandProcess(
            log_folder() / "sshgateway.log",
            "sshgateway",
            SVC_SSH_PORT=str(free_port()),
            SSH_GATEWAY_HOST_KEY_PATH=str(folder / "key"),
            SSH_GATEWAY_API_BASE_URL=f"http://127.0.0.1:{api.connection.port}",
            WORKSPACE_SSH_GATEWAY_TOKEN="only-for-the-benchmark",
            SVC_LOG_LEVEL="INFO",
        )
        stack.callback(gateway.stop)
        eventually(lambda: "gateway_started" in gateway.told, what="the gateway")
        yield api


# ---------------------------------------------------------------- reconciling


class _Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers for containers that never were."""

    daemon_threads = True

    def __init__(self, path: str, attempts: Sequence[Attempt], instance_id: str) -> None:
        running = [_container(attempt, instance_id) for attempt in attempts]
        networks = [_network(attempt, instance_id) for attempt in attempts]
        version = {"ApiVersion": "1.47", "Version": "27.0", "Os": "linux"}
        self.answers = {
            "/version": json.dumps(version).encode(),
            "/info": json.dumps({"ID": "engine"}).encode(),
            "/containers/json": json.dumps(running).encode(),
            "/networks": json.dumps(networks).encode(),
            "/volumes": json.dumps({"Volumes": []}).encode(),
        }
        super().__init__(path, _Answering)


class _Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        """Answer from memory."""
        path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
        assert isinstance(self.server, _Engine)
        body = self.server.answers[path]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _labels(attempt: Attempt, instance_id: str) -> dict[str, str]:
    return {
        "svc.instance": instance_id,
        "svc.run": str(attempt.run_id),
        "svc.workspace": str(attempt.workspace_id),
        "svc.job": str(uuid.uuid4()),
        "svc.attempt-count": "1",
    }


def _container(attempt: Attempt, instance_id: str) -> dict[str, Any]:
    return {
        "Id": uuid.uuid4().hex * 2,
        "Names": [f"/svc-{attempt.run_id}"],
        "Image": f"127.0.0.1:5000/bench@sha256:{'0' * 64}",
        "ImageID": f"sha256:{'0' * 64}",
        "Command": "/usr/lib/svc/agent boot",
        "Created": 1_760_000_000,
        "Ports": [],
        "Labels": _labels(attempt, instance_id),
        "State": "running",
        "Status": "Up 3 hours",
        "HostConfig": {"NetworkMode": uuid.uuid4().hex * 2},
        "NetworkSettings": {"Networks": {}},
        "Mounts": [],
    }


def _network(attempt: Attempt, instance_id: str) -> dict[str, Any]:
    return {
        "Id": uuid.uuid4().hex * 2,
        "Name": f"svc-{attempt.run_id}",
        "Labels": _labels(attempt, instance_id),
    }


def _reconciling() -> list[Figure]:
    attempts = ready_attempts(WORKSPACES)
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as folder:
        path = f"{folder}/engine.sock"
        figures = []
        for what, there in (("all there", WORKSPACES), ("half of them lost", WORKSPACES // 2)):
            engine = _Engine(path, attempts[:there], "bench")
            thread = threading.Thread(target=engine.serve_forever, daemon=True)
            thread.start()
            adapter = DockerAdapter(f"unix://{path}", "bench")
            lost = WORKSPACES - there
            times, queries = [], 0
            for number in range(PASSES if not lost else 1):  # they are lost once
                with CaptureQueriesContext(connection) as captured:
                    began = time.perf_counter()
                    result = reconcile(
                        adapter,
                        instance_id="bench",
                        grace=timedelta(minutes=1),
                        keep_ended=timedelta(days=1),
                        orphans=Orphans(keep=timedelta(days=1)),
                    )
                    times.append(time.perf_counter() - began)
                assert (result.lost, result.removed) == (lost, 0), (number, result)
                queries = max(queries, len(captured))
            engine.shutdown()
            engine.server_close()
            thread.join()
            Path(path).unlink()
            figures.append(_reconciled(what, times, queries))
    return figures


def _reconciled(what: str, times: list[float], queries: int) -> Figure:
    slowest = max(times)
    return Figure(
        f"reconcile of {WORKSPACES} workspaces, {what}, slowest of {len(times)}",
        f"{milliseconds(slowest)}, {queries} queries",
        "an engine that answers from memory",
        None,
        "<= 5 s, <= 20 queries",
        slowest <= 5 and queries <= 20,
    )


def _operating() -> Iterator[Figure]:
    with _all_processes() as api:
        yield from _stop_and_start(api)
        yield _memory()


def main() -> int:
    """Measure and print the table."""
    measures = {
        "stop, start and memory": _operating,
        "warm starts": warm.measure,
        "reconciling": _reconciling,
    }
    return report({name: in_own_database(measure) for name, measure in measures.items()})


if __name__ == "__main__":
    sys.exit(main())
