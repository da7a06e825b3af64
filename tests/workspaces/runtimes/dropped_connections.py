"""Records and watches that go on although their connections to the API server are cut."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import yaml

from runs.agent.record.frames import Kind, decode
from runs.recording.tail_channel import TailChannel, TailEndedError
from tests.clients.cutting_relay import CuttingRelay, cutting_relay_to
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.runtimes.pod_launcher import PodLauncher
from tests.workspaces.runtimes.runtime_suite import shell
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.kubernetes import KubernetesAdapter
from workspaces.runtimes.kubernetes.cluster import PODS, annotations_of
from workspaces.runtimes.kubernetes.pods import pod_name

RUNS = 3
LINE = b"%015d\n" * 64
"""A KiB for each number."""
MOST_BYTES = 96 * 1024
"""A connection is cut after at most so many bytes of answers: at its beginning, or in a frame."""
MARK = "svc.test/mark"
PROGRAM = """
import os, sys
number = 0
while not os.path.exists("enough"):
    sys.stdout.buffer.write((b"%015d\\n" * 64) % ((number,) * 64))
    sys.stdout.buffer.flush()
    number += 1
open("written", "w").write(str(number))
"""


@dataclass
class Dropped:
    """What came over connections that were cut, and what did not."""

    drops: int = 0
    received: int = 0
    lost: int = 0
    twice: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, received: int = 0, lost: int = 0, twice: int = 0) -> None:
        """Count more of it."""
        with self.lock:
            self.received += received
            self.lost += lost
            self.twice += twice


def with_dropped(pods: PodLauncher, drops: int) -> Dropped:
    """Cut so many connections, half of them of records and half of a watch; say what has come."""
    request = pods.request(outbound=True, timeout=LONG_WAIT)
    pods.launch(request)
    found = Dropped()
    chance = random.Random(drops)
    with cut(pods, chance, drops - drops // 2) as records, cut(pods, chance, drops // 2) as watches:
        runs = [uuid4() for _ in range(RUNS)]
        for run_id in runs:
            begin(pods, request.run_id, run_id)
        steps: list[Callable[[], None]] = [
            *(
                lambda one=run_id: read(pods, records, request.run_id, one, found)
                for run_id in runs
            ),
            lambda: watch(pods, watches, request.run_id, found),
        ]
        failures: list[BaseException] = []
        threads = [threading.Thread(target=noted, args=(step, failures)) for step in steps]
        for thread in threads:
            thread.start()
        behind = (records, watches)
        eventually(
            lambda: failures or all(each.enough for each in behind),
            what="so many were cut",
            timeout=4 * LONG_WAIT,
        )
        records.relay.cuts.clear()
        for run_id in runs:
            shell(pods, request.run_id, f"cd {folder_of(run_id)} && touch enough")
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        found.drops = records.relay.cut + watches.relay.cut
    return found


def noted(step: Callable[[], None], failures: list[BaseException]) -> None:
    """Run a step of a thread; its failure is for the one who waits for it."""
    try:
        step()
    except BaseException as error:
        failures.append(error)


@dataclass(frozen=True)
class Cut:
    """An installation of whose connections so many are cut."""

    relay: CuttingRelay
    adapter: KubernetesAdapter
    number: int

    @property
    def enough(self) -> bool:
        """Whether so many were."""
        return self.relay.cut >= self.number


@contextmanager
def cut(pods: PodLauncher, chance: random.Random, number: int) -> Iterator[Cut]:
    """Have so many of the installation's connections be cut."""
    with behind_relay(pods) as (relay, adapter):
        # Some end by themselves before.
        relay.cuts.extend(chance.randrange(MOST_BYTES) for _ in range(4 * number))
        yield Cut(relay, adapter, number)


@contextmanager
def behind_relay(pods: PodLauncher) -> Iterator[tuple[CuttingRelay, KubernetesAdapter]]:
    """Have the installation reach the API server through a relay that cuts connections."""
    server = pods.place.admin.access.server()
    with TemporaryDirectory() as folder, cutting_relay_to(server.port, server.host) as relay:
        document = yaml.safe_load(Path(pods.place.kubeconfig).read_text("utf-8"))
        for each in document["clusters"]:
            each["cluster"]["server"] = relay.url.replace("http:", "https:")
            each["cluster"]["tls-server-name"] = server.host
        place = Path(folder) / "kubeconfig"
        place.write_text(yaml.safe_dump(document), "utf-8")
        adapter = KubernetesAdapter(pods.instance_id, pods.place.name, kubeconfig=str(place))
        try:
            yield relay, adapter
        finally:
            adapter.execs.close()


# -------------------------------------------------------------------------------------- records


def folder_of(run_id: UUID) -> str:
    """Where a run's program works."""
    return f"/tmp/{run_id}"


def begin(pods: PodLauncher, boot_run: UUID, run_id: UUID) -> None:
    """Start a run that writes until it is told that it is enough."""
    shell(pods, boot_run, f"mkdir {folder_of(run_id)}")
    begin_program(pods, boot_run, run_id, ["python3", "-c", PROGRAM], folder_of(run_id))


def begin_program(
    pods: PodLauncher, boot_run: UUID, run_id: UUID, argv: list[str], folder: str | None = None
) -> None:
    """Start a recorded run with a small spool, and nothing observed but its output."""
    spec = {
        "version": 1,
        "runId": str(run_id),
        "argv": argv,
        "cwd": folder,
        "env": {},
        "stdin": None,
        "timeSeconds": 10 * LONG_WAIT,
        "graceSeconds": 1,
        "secrets": [],
        "record": {
            "policy": "block",
            "input": "off",
            "spoolBytes": 1 << 20,
            "segmentBytes": 1 << 18,
            "files": False,
            "network": False,
            "processes": False,
            "patchBytes": 0,
            "maxFiles": 0,
        },
    }
    stdin = json.dumps(spec).encode()
    answer = pods.adapter.call_agent(boot_run, ["exec"], stdin=stdin, timeout=LONG_WAIT)
    assert b'"started"' in answer.stdout, answer


def read(pods: PodLauncher, behind: Cut, boot_run: UUID, run_id: UUID, found: Dropped) -> None:
    """Follow a record to its end, connected again whenever that is cut, as a recorder does."""
    last, sealed = 0, False
    pieces: list[bytes] = []
    while not sealed:
        try:
            tail = TailChannel.open(behind.adapter, boot_run, run_id, last + 1)
        except LaunchError as error:
            # A connection that was cut is not the end of a workspace.
            assert error.code == "adapter-unavailable", error
            continue
        except TailEndedError as error:
            assert error.exit_code is None, error
            continue
        with closing(tail), contextlib.suppress(TailEndedError, LaunchError):
            while not sealed:
                for content in tail.read(LONG_WAIT):
                    event = decode(content)
                    if event.sequence <= last:
                        found.add(twice=len(event.body))
                        continue
                    assert event.sequence == last + 1, (event.sequence, last)
                    last = event.sequence
                    sealed = event.kind == Kind.RECORD_SEALED
                    if event.kind == Kind.IO_CHUNK:
                        pieces.append(event.body)
                tail.acknowledge(last)
    code, said = shell(pods, boot_run, f"cat {folder_of(run_id)}/written")
    assert code == 0, said
    stream = b"".join(pieces)
    written = b"".join(LINE % ((number,) * 64) for number in range(int(said)))
    found.add(received=len(stream), lost=different(written, stream))


def different(one: bytes, other: bytes) -> int:
    """Return how many bytes are not the same."""
    if one == other:
        return 0
    return abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))


# -------------------------------------------------------------------------------------- watches


def watch(pods: PodLauncher, behind: Cut, boot_run: UUID, found: Dropped) -> None:
    """Watch a Pod whose marks count up until all connections were cut; each has to be seen once."""
    name = pod_name(boot_run)
    ended = threading.Event()
    first = pods.pod(boot_run)
    marked: list[int] = []

    def mark() -> None:
        while not behind.enough:
            number = len(marked) + 1
            change = {"metadata": {"annotations": {MARK: str(number)}}}
            pods.place.admin.patch(PODS, name, change)
            marked.append(number)
        behind.relay.cuts.clear()
        ended.set()

    marking = threading.Thread(target=mark)
    marking.start()
    version, seen = first["metadata"]["resourceVersion"], [0]
    versions = {version}
    while not (ended.is_set() and seen[-1] == len(marked)):
        for pod in behind.adapter.cluster.watch(PODS, name, version, seconds=1):
            version = pod["metadata"]["resourceVersion"]
            number = int(annotations_of(pod).get(MARK, "0"))
            size = len(json.dumps(pod))
            if version in versions:
                found.add(twice=size)
                continue
            versions.add(version)
            # Others change the Pod, too, and its mark is the same then.
            found.add(received=size, lost=size * max(0, number - seen[-1] - 1))
            seen.append(max(number, seen[-1]))
    marking.join()
