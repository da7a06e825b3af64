"""A machine of the cluster loses power, with a workspace and its volume on it, and comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OWNER
from tests.stack import cluster, spare_node
from tests.stack.cluster import Namespace
from tests.stack.pod_settings import workspaces_in
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.runs import Place
from tests.stack.service import Stack
from tests.stack.spare_node import SpareNode
from tests.stack.worker_process import eventually, settled
from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.kubernetes.cluster import PODS

# It has the cluster set up and the image built, too; a cluster waits 40 s before a node is lost.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

GIVEN_UP_SECONDS = 5
"""After which the cluster gives up the Pods of a lost node; five minutes by default."""
COUNTING = "n=0; while :; do echo $n; n=$((n+1)); sleep 0.05; done"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace with the installation's Role, in which this process and its children work."""
    registry = os.environ["REGISTRY_PUSH_REGISTRY"]
    given_up = [f"node.kubernetes.io/{each}:NoExecute" for each in ("unreachable", "not-ready")]
    tolerated = [spare_node.TAINT, *(f"{each}:{GIVEN_UP_SECONDS}" for each in given_up)]
    with (
        cluster.namespace(registry, tmp_path_factory.mktemp("cluster")) as made,
        workspaces_in(made),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("KUBERNETES_NODE_SELECTOR", spare_node.SELECTOR)
        patch.setenv("KUBERNETES_TOLERATIONS", ",".join(tolerated))
        patch.setenv("KUBERNETES_START_TIMEOUT_MS", str(round(LONG_WAIT * 1000)))
        patch.setenv("WORKER_RECONCILE_INTERVAL_MS", "2000")
        yield made


@pytest.fixture(scope="module")
def stack(place: Namespace, stack: Stack) -> Stack:
    """The service, whose workspaces are Pods."""
    return stack


@pytest.fixture
def node(place: Namespace) -> Iterator[SpareNode]:
    """The only node that takes them."""
    with spare_node.spare_node(place.admin) as joined:
        yield joined


@dataclass(frozen=True)
class Kept:
    """A persistent workspace, the runs in it, and its Pods."""

    runs: Place
    pods: Namespace

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"/v1/workspaces/{self.runs.started.answer['workspaceId']}"

    def shown(self) -> Any:
        """What the API says of it."""
        return self.runs.stack.api.get(self.path).body

    def start(self) -> Any:
        """Have it started, and wait until the attempt is over; what the API says of it then."""
        self.runs.stack.api.post(f"{self.path}/start", {"ownerUserId": OWNER})
        return settled(self.shown, timeout=LONG_WAIT)[-1]

    def there(self) -> list[tuple[str, str]]:
        """Its Pods and their nodes, those that are going away included."""
        found = self.pods.admin.list(PODS, {})
        return [(each["metadata"]["name"], each["spec"]["nodeName"]) for each in found]


@pytest.fixture
def kept(
    stack: Stack, place: Namespace, node: SpareNode, run_queue: str, tmp_path: Path
) -> Iterator[Kept]:
    """One that is ready, with a worker for its runs."""
    started = stack.ready({"runtime": {"persistence": "persistent"}})
    worker = RunWorkerProcess(tmp_path / "run-worker.log")
    try:
        yield Kept(Place(stack, started, worker), place)
    finally:
        worker.stop()


def test_nothing_starts_on_the_volume_of_a_lost_machine_until_its_pod_is_proven_gone(
    kept: Kept, node: SpareNode
) -> None:
    runs = kept.runs
    first = (f"svc-{runs.started.answer['runId']}", spare_node.NAME)
    assert kept.there() == [first]
    assert runs.completed(runs.shell("echo kept >~/kept; sync"))["exitCode"] == 0
    run = runs.shell(COUNTING)
    runs.wait_output(run, b"\n20\n")

    node.cut_off()
    node.kill()
    eventually(lambda: kept.shown()["status"] == "failed", what="the workspace is lost")
    reason = kept.shown()["reason"]
    assert reason["code"] == "node-lost"
    assert "n2 does not answer; what runs there is not known until it is back" in reason["message"]

    refused = kept.start()
    assert (refused["status"], refused["reason"]["code"]) == ("failed", "node-lost")
    assert "earlier Pod is not proven gone" in refused["reason"]["message"]
    assert kept.there() == [first]

    # Nobody knows whether it goes on, and so its record has not ended.
    assert runs.read(run)["status"] == "running"
    assert runs.read(run)["reason"]["code"] == "node-lost"

    node.mend()
    node.join()
    eventually(lambda: kept.there() == [], what="its node says that the Pod is gone")
    for each in (run, runs.started.answer["runId"]):
        assert runs.lost(each)
    numbers = runs.output(run).split(b"\n")
    assert numbers[:-1] == [b"%d" % number for number in range(len(numbers) - 1)]

    again = kept.start()
    assert again["status"] == "ready", again
    read = runs.shell("cat ~/kept")
    assert runs.completed(read)["exitCode"] == 0
    assert runs.output(read) == b"kept\n"
