"""``make bench-recovery``: the API while any one process is killed, and the others. Not a test.

Everything that an installation runs is under supervisord, as ``make up`` has it. One process after
the other gets a SIGKILL: gunicorn's master, one of its workers, the build worker, the run worker,
the gateways. From then on ``/healthz`` is asked every 10 ms, each time by a new connection.

The floor is what the interpreter takes to load the application: nothing that was killed can be back
sooner. A hundred kills and the starts after them take two to ten minutes.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first

from deploy.services.process import wait_until  # noqa: E402
from deploy.up.layout import Layout  # noqa: E402
from deploy.up.own_processes import PROCESSES, OwnProcesses  # noqa: E402
from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, milliseconds, percentile, report  # noqa: E402
from tests.bench.served import remove_all  # noqa: E402
from tests.stack.free_ports import free_port  # noqa: E402
from tests.stack.worker_process import ROOT, environment  # noqa: E402
from tests.support import queues  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.lifecycle.build_messages import BUILD_REQUESTED  # noqa: E402

TARGET_SECONDS = 3.0
LOADS = 5
SETTLED_SECONDS = LONG_WAIT


def measure(kills: int) -> list[Figure]:
    """Kill one process after the other and return how long the API was away."""
    floor = median(_loading() for _ in range(LOADS))
    with _supervised() as (processes, port):
        away: dict[str, list[float]] = {}
        disturbed = 0
        for number in range(kills):
            before = _eventually_all(processes, port)
            victims = sorted(before)
            victim = victims[number % len(victims)]
            os.kill(before[victim], signal.SIGKILL)
            away.setdefault(victim, []).append(_away(port, before[victim]))
            after = _eventually_all(processes, port)
            # Workers of a killed master go with it: they would hold its port.
            gone = {"api worker"} if victim == "api" else set()
            disturbed += sum(
                after.get(name) != pid
                for name, pid in before.items()
                if name not in {victim, *gone}
            )
    took = sorted(second for seconds in away.values() for second in seconds)
    p99 = percentile(took, 99)
    slowest = max(away, key=lambda name: max(away[name]))
    return [
        Figure(
            f"API away after SIGKILL of any one process, p99 of {kills}",
            f"{milliseconds(p99)} (p50 {milliseconds(median(took))}; longest: {slowest})",
            f"{milliseconds(floor)} (loading the application)",
            p99 / floor,
            f"<= {TARGET_SECONDS:g} s",
            p99 <= TARGET_SECONDS,
        ),
        Figure(
            "other processes that such a SIGKILL ended",
            str(disturbed),
            "",
            None,
            "<= 0",
            disturbed == 0,
        ),
    ]


@contextmanager
def _supervised() -> Iterator[tuple[OwnProcesses, int]]:
    """Run everything under supervisord; yields it and the API's port."""
    settings.SVC_INSTANCE_ID = f"bench-{uuid.uuid4().hex[:8]}"
    settings.WORKSPACE_BUILD_QUEUE = f"sandbox-image-builds-{settings.SVC_INSTANCE_ID}"
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-{settings.SVC_INSTANCE_ID}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-bench-")))
        for messages in (BUILD_REQUESTED, RUN_REQUESTED):
            topology = messages.topology()
            stack.callback(
                queues.purge_and_delete, settings.RABBITMQ_URL, topology, timeout=LONG_WAIT
            )
        stack.callback(remove_all)
        layout = Layout(ROOT, folder, folder / "services")
        layout.create()
        port = free_port()
        environ = environment(
            SVC_DATA_DIR=str(folder),
            SVC_BIND_HOST="127.0.0.1",
            SVC_API_PORT=str(port),
            SVC_API_WORKERS="2",
            SVC_WEB_PORT="0",
            SVC_SSH_PORT=str(free_port()),
            SVC_PREVIEW_PORT=str(free_port()),
            SSH_GATEWAY_HOST_KEY_PATH=str(folder / "key"),
            SSH_GATEWAY_API_BASE_URL=f"http://127.0.0.1:{port}",
            WORKSPACE_SSH_GATEWAY_TOKEN="only-for-the-benchmark",
        )
        processes = OwnProcesses(layout)
        processes.start(environ)
        stack.callback(processes.stop)
        yield processes, port


def _eventually_all(processes: OwnProcesses, port: int) -> dict[str, int]:
    """Return the process of each name, and of one of the API's workers, once all are up."""
    wanted = {process.name: "RUNNING" for process in PROCESSES}
    if not wait_until(
        lambda: processes.states() == wanted and _answers(port), SETTLED_SECONDS, every=0.2
    ):
        raise RuntimeError(f"not all of it runs: {processes.states()}")
    supervisor = int((processes.layout.sockets / "supervisord.pid").read_text())
    found: dict[str, int] = {}
    children = _children()
    for pid in children.get(supervisor, []):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = next((each for each in wanted if each.encode() in words), "api")
        found[name] = pid
    found["api worker"] = min(children[found["api"]])
    return found


def _children() -> dict[int, list[int]]:
    """Return the children of each process."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        found.setdefault(parent, []).append(int(entry.name))
    return found


def _away(port: int, killed: int) -> float:
    """Return the seconds from now until the API answers, for a process that has been killed."""
    began = time.perf_counter()
    wait_until(lambda: not Path(f"/proc/{killed}").exists(), LONG_WAIT, every=0.002)
    if not wait_until(lambda: _answers(port), SETTLED_SECONDS, every=0.01):
        raise RuntimeError("the API never came back")
    return time.perf_counter() - began


def _answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False


def _loading() -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import controlplane.wsgi"],
        cwd=ROOT,
        env=environment(DJANGO_SETTINGS_MODULE="controlplane.settings"),
        check=True,
    )
    return time.perf_counter() - began


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many processes are killed")
    options = parser.parse_args()
    return report({"recovery": in_own_database(lambda: measure(options.kills))})


if __name__ == "__main__":
    sys.exit(main())
