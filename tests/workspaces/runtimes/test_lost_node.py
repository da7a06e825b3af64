"""A machine that is lost with all that ran on it, and never comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from runs.agent.record.frames import Event, Kind, decode
from runs.recording.tail_channel import TailChannel, TailEndedError
from tests.registries.account import PUSH_REGISTRY
from tests.stack import cluster
from tests.stack.cluster import Namespace
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher
from tests.workspaces.runtimes.dropped_connections import begin_program
from tests.workspaces.runtimes.pod_launcher import PodLauncher
from tests.workspaces.runtimes.pod_suite import ended_code
from tests.workspaces.runtimes.runtime_suite import HOME, running, shell
from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes.cluster import PODS, Document
from workspaces.runtimes.kubernetes.pods import pod_name

# It also has the cluster set up, the image built and got by the node; the cluster takes 40 s to
# notice that a node is gone.
pytestmark = pytest.mark.timeout(1200)

NODE = "n2"
GIVEN_UP_SECONDS = 5
PROGRAM = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.05; done"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace with the installation's Role."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    with cluster.namespace(PUSH_REGISTRY, folder) as made:
        yield made


@pytest.fixture
def lose(place: Namespace) -> Iterator[Callable[[], None]]:
    """Lose the node that Pods were put on."""
    with cluster.another_node(place.admin, NODE) as lost:
        yield lost


@pytest.fixture
def pods(
    place: Namespace, docker_client: docker.DockerClient, workspace_image: str
) -> Iterator[PodLauncher]:
    """An installation; all that it left is removed afterwards."""
    plain = Launcher(None, docker_client, workspace_image, str(uuid4()))  # type: ignore[arg-type]
    made = PodLauncher.of(place, plain)
    yield made
    made.clean_up()


def put_on_the_node(pods: PodLauncher, request: LaunchRequest) -> None:
    """Launch it there; the cluster gives its Pod up sooner than after the usual five minutes."""
    create = pods.adapter.cluster.create

    def create_there(kind: str, document: Document) -> Document:
        if kind == PODS:
            document["spec"]["nodeName"] = NODE
            document["spec"]["tolerations"] = [
                {
                    "key": f"node.kubernetes.io/{each}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": GIVEN_UP_SECONDS,
                }
                for each in ("unreachable", "not-ready")
            ]
        made: Document = create(kind, document)
        return made

    pods.adapter.cluster.create = create_there
    try:
        pods.launch(request)
    finally:
        pods.adapter.cluster.create = create
    assert pods.pod(request.run_id)["spec"]["nodeName"] == NODE


def taken(tail: TailChannel, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """Take events until there are enough, or the connection ends."""
    events: list[Event] = []
    while not enough(events):
        try:
            events += map(decode, tail.read(LONG_WAIT))
        except TailEndedError as error:
            assert error.exit_code is None, error  # nobody has said that the record ended
            break
        tail.acknowledge(events[-1].sequence if events else 0)
    return events


def refused(pods: PodLauncher, request: LaunchRequest) -> LaunchError:
    """Why a launch fails."""
    with pytest.raises(LaunchError) as caught:
        pods.launch(request)
    return caught.value


def test_a_lost_node_is_the_reason_and_nothing_starts_on_its_volume_until_its_pod_is_gone(
    pods: PodLauncher, lose: Callable[[], None]
) -> None:
    request = pods.request(
        volumes=(HOME,), fresh_volumes=True, outbound=True, timeout=3 * LONG_WAIT
    )
    put_on_the_node(pods, request)
    assert shell(pods, request.run_id, "echo kept > ~/kept; sync") == (0, "")
    run_id = uuid4()
    begin_program(pods, request.run_id, run_id, ["sh", "-c", PROGRAM])
    tail = TailChannel.open(pods.adapter, request.run_id, run_id, 1)
    try:
        events = taken(tail, lambda found: sum(e.kind == Kind.IO_CHUNK for e in found) >= 20)
        lose()
        # What was under way may still come; nothing says that the record has ended.
        events += taken(tail, lambda found: False)
    finally:
        tail.close()

    # The record up to there is whole.
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    output = b"".join(event.body for event in events if event.kind == Kind.IO_CHUNK)
    lines = output.split(b"\n")
    assert lines[:-1] == [b"line %d" % number for number in range(len(lines) - 1)]
    assert Kind.RECORD_SEALED not in {event.kind for event in events}

    reason = eventually(
        lambda: ended_code(pods, request.run_id), what="the node is lost", timeout=4 * LONG_WAIT
    )
    assert reason is not None
    assert reason[0] == "node-lost"
    assert f"node {NODE} does not answer" in reason[1]
    assert not running(pods, request.run_id)

    again = pods.request(workspace_id=request.workspace_id, volumes=(HOME,), outbound=True)
    error = refused(pods, again)
    assert error.code == "node-lost"
    assert "not proven gone" in error.message
    assert [each["metadata"]["name"] for each in pods.pods()] == [pod_name(request.run_id)]

    # The operator answers for it: the machine is off.
    pod = pods.pod(request.run_id)
    pods.place.admin.delete(PODS, pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace=0)
    eventually(lambda: pods.adapter.observe(request.run_id) is None, what="the Pod is gone")
    pods.launch(again)
    assert shell(pods, again.run_id, "cat ~/kept") == (0, "kept\n")
