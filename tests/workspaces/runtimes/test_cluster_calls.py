"""A cluster that answers badly, or has something else under a name by now."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.workspaces.runtimes.small_api_server import Request, SmallApiServer, small_api_server
from workspaces.runtimes.base import LaunchError, LaunchRequest, Volume
from workspaces.runtimes.kubernetes import KubernetesAdapter, pod_removal, volume_claims
from workspaces.runtimes.kubernetes.exec_wire import OUTPUT, STATUS
from workspaces.runtimes.kubernetes.network_policies import policy_for, sweep_probes
from workspaces.runtimes.kubernetes.pod_ownership import PodOwnership
from workspaces.runtimes.kubernetes.pod_stream import PodStream
from workspaces.runtimes.kubernetes.pods import PodOptions, claim_name, pod_for, pod_name
from workspaces.runtimes.kubernetes.preflight import MEMORY_MB, Preflight

CORE = "/api/v1/namespaces/ns"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/ns/networkpolicies"
HOME = Volume("home", "/home/workspace")


@pytest.fixture
def server() -> Iterator[SmallApiServer]:
    """A cluster without anything."""
    with small_api_server() as made:
        yield made


@pytest.fixture
def adapter(server: SmallApiServer, tmp_path: Path) -> KubernetesAdapter:
    """An installation in it."""
    return KubernetesAdapter(
        "ours",
        "ns",
        kubeconfig=server.kubeconfig(tmp_path),
        options=PodOptions(probe_image="registry/probe@sha256:0"),
        guarded=False,
    )


@pytest.fixture
def request_() -> LaunchRequest:
    """A launch."""
    return LaunchRequest(
        instance_id="ours",
        run_id=uuid4(),
        attempt_id=uuid4(),
        workspace_id=uuid4(),
        job_id=uuid4(),
        attempt_count=1,
        image="registry/image@sha256:0",
        boot={},
        working_directory="/",
        outbound=True,
        memory_mb=64,
        cpus=1,
        pids=64,
        sudo=False,
        restart=False,
        oci_runtime="runc",
        timeout=60,
    )


def ownership(
    adapter: KubernetesAdapter, request: LaunchRequest, signed: str = "mine"
) -> PodOwnership:
    """What a launch may do with the Pod of its run."""
    return PodOwnership(adapter.cluster, request, threading.Event(), PodOptions(), signed)


def having_pod(
    server: SmallApiServer, request: LaunchRequest, *, signed: str = "mine", **status: Any
) -> str:
    """Have the Pod of a launch; its path."""
    place = f"{CORE}/pods/{pod_name(request.run_id)}"
    server.store(place, pod_for(request, PodOptions(), signed) | {"status": status})
    return place


RUNNING: dict[str, Any] = {"containerStatuses": [{"name": "workspace", "state": {"running": {}}}]}


# ---------------------------------------------------------------------------- answers cut short


def cut_short(call: Request) -> bool:
    """Promise more than is sent."""
    call.send_response(200)
    call.send_header("Content-Length", "1000")
    call.end_headers()
    call.wfile.write(b'{"items": [')
    call.hang_up()
    return True


def no_json(call: Request) -> bool:
    """Answer as something in between does."""
    call.send_response(200)
    call.send_header("Content-Length", "6")
    call.end_headers()
    call.wfile.write(b"<html>")
    return True


@pytest.mark.parametrize("fault", [cut_short, no_json])
def test_an_answer_that_is_not_whole_is_an_api_server_that_does_not_answer(
    server: SmallApiServer, adapter: KubernetesAdapter, fault: Any
) -> None:
    server.faults.append(fault)
    with pytest.raises(LaunchError) as caught:
        adapter.list()
    assert caught.value.code == "adapter-unavailable"
    assert adapter.cluster.logs("a", "b", 1) in (b"", b"<html>")


@pytest.mark.parametrize("status", [403, 410, 429, 500])
def test_a_watch_that_is_refused_has_seen_nothing(
    server: SmallApiServer, adapter: KubernetesAdapter, status: int
) -> None:
    def refused(call: Request) -> bool:
        call.answer(status, {"kind": "Status", "message": "no"}, Retry_After="0.1")
        return True

    server.faults.append(refused)
    assert list(adapter.cluster.watch("pods", "a", "1", seconds=1)) == []


def test_a_watch_whose_connection_is_cut_has_seen_nothing_and_the_next_look_tells_why(
    server: SmallApiServer, adapter: KubernetesAdapter
) -> None:
    def hung_up(call: Request) -> bool:
        call.hang_up()
        return True

    server.faults.append(hung_up)
    assert list(adapter.cluster.watch("pods", "a", "1", seconds=1)) == []
    with pytest.raises(LaunchError) as caught:
        adapter.cluster.get("pods", "a")
    assert caught.value.code == "adapter-unavailable"


def test_an_exec_that_is_not_answered_ends_without_a_word_to_the_event_loop(
    server: SmallApiServer, adapter: KubernetesAdapter
) -> None:
    over = threading.Event()

    def silent(call: Request) -> bool:
        call.hang_up()
        return over.wait(60)

    server.faults.append(silent)
    said: list[dict[str, Any]] = []

    async def opened() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        receiver: Any = None
        try:
            with pytest.raises(LaunchError, match="does not begin"):
                await PodStream.open(adapter.cluster, "a", ["session"], receiver, timeout=0.2)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            over.set()

    asyncio.run(opened())
    assert said == []


# ------------------------------------------------------------------------------- what is not ours


def test_a_pod_whose_creation_was_not_answered_is_not_left_behind(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    def created_without_a_word(call: Request) -> bool:
        if call.command == "POST" and call.path.endswith("/pods"):
            server.store(f"{call.path}/{call.body['metadata']['name']}", call.body)
            call.hang_up()
            return True
        return False

    server.faults.append(created_without_a_word)
    with pytest.raises(LaunchError) as caught:
        launch(adapter, request_)
    assert caught.value.code == "adapter-unavailable"
    assert not [place for place in server.objects if place.startswith(f"{CORE}/pods")]


def test_a_pod_that_was_refused_leaves_no_policy(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    def refused(call: Request) -> bool:
        if call.command == "POST" and call.path.endswith("/pods"):
            call.refuse(422, "no")
            return True
        return False

    server.faults.append(refused)
    with pytest.raises(LaunchError) as caught:
        launch(adapter, request_)
    assert caught.value.code == "admission-refused"
    assert server.objects == {}


def launch(adapter: KubernetesAdapter, request: LaunchRequest) -> None:
    """Launch."""
    adapter.launch(request, cancelled=threading.Event())


def test_another_pod_that_has_got_the_name_is_not_ended(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    place = having_pod(server, request_)
    seen = adapter.cluster.get("pods", pod_name(request_.run_id))
    assert seen is not None
    having_pod(server, replace(request_, attempt_count=2), signed="another")
    pod_removal.end_from_outside(adapter.cluster, seen)
    assert "activeDeadlineSeconds" not in server.objects[place]["spec"]
    current = adapter.cluster.get("pods", pod_name(request_.run_id))
    assert current is not None
    pod_removal.end_from_outside(adapter.cluster, current)
    assert server.objects[place]["spec"] == {"activeDeadlineSeconds": 1}


def test_a_copy_of_a_pod_with_its_labels_is_no_runtime(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    place = having_pod(server, request_, **RUNNING)
    pod = server.objects[place]
    copied = pod | {"metadata": pod["metadata"] | {"name": "debugged"}}
    server.store(f"{CORE}/pods/debugged", copied)
    assert [each.reference for each in adapter.list()] == [pod_name(request_.run_id)]


def test_probes_that_were_replaced_do_not_end_the_sweep(
    server: SmallApiServer, adapter: KubernetesAdapter
) -> None:
    labels = {"svc.instance": "ours", "svc.probe": "1"}
    metadata = {"name": "svc-probe-1", "labels": labels, "uid": "seen"}
    server.store(f"{CORE}/pods/svc-probe-1", {"metadata": metadata})

    def replaced(call: Request) -> bool:
        if call.command == "DELETE":
            call.refuse(409, "another one")
        return call.command == "DELETE"

    server.faults.append(replaced)
    sweep_probes(adapter.cluster)
    assert ("DELETE", f"{CORE}/pods/svc-probe-1") in server.calls


# -------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("168.63.129.16", False),
        ("169.254.169.254", False),
        ("10.0.0.1", False),
        ("255.255.255.255", False),
        ("1.1.1.1", True),
        ("168.63.129.17", True),
    ],
)
def test_the_outside_is_what_is_public_and_tells_no_machine_about_itself(
    request_: LaunchRequest, address: str, reached: bool
) -> None:
    (outside, _) = policy_for(request_)["spec"]["egress"]
    block = outside["to"][0]["ipBlock"]
    assert block["cidr"] == "0.0.0.0/0"
    kept_away = any(IPv4Address(address) in IPv4Network(each) for each in block["except"])
    assert kept_away is not reached


# ----------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("code", [0, 1])
def test_files_that_were_sent_to_their_end_are_whole(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest, code: int
) -> None:
    having_pod(server, request_, **RUNNING)
    server.faults.append(sending((OUTPUT, b"one"), (OUTPUT, b"two"), exited(code)))
    with adapter.read_files(request_.run_id, "/var/lib/svc/runs") as chunks:
        assert b"".join(chunks or ()) == b"onetwo"


@pytest.mark.parametrize("ends", [[], [137]], ids=["connection", "tar"])
def test_files_that_are_cut_short_are_not_taken_for_the_whole(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest, ends: list[int]
) -> None:
    having_pod(server, request_, **RUNNING)
    server.faults.append(sending((OUTPUT, b"one"), *(exited(code) for code in ends)))
    with adapter.read_files(request_.run_id, "/var/lib/svc/runs") as chunks:
        assert chunks is not None
        assert next(chunks) == b"one"
        with pytest.raises(LaunchError, match="no longer being sent"):
            next(chunks)


@pytest.mark.parametrize(
    ("printed", "found"),
    [(f"{MEMORY_MB << 20}\n", "processes to ?,"), ("", "limit is ?"), ("1\n", "limit is 1")],
)
def test_a_node_that_does_not_tell_all_limits_is_a_finding(
    server: SmallApiServer,
    adapter: KubernetesAdapter,
    request_: LaunchRequest,
    printed: str,
    found: str,
) -> None:
    server.faults.append(sending((OUTPUT, printed.encode()), (STATUS, told({"status": "Success"}))))
    preflight = Preflight(adapter, "registry/image")
    finding = preflight._tried("limits", lambda: preflight._limits(request_), "")
    assert found in finding.seen


def exited(code: int) -> tuple[int, bytes]:
    """Return the message that says so."""
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"status": "Failure" if code else "Success", "details": {"causes": causes}}
    return STATUS, told(status)


def sending(*messages: tuple[int, bytes]) -> Callable[[Request], bool]:
    """Answer an exec with these messages of channels, and nothing more."""

    def send(call: Request) -> bool:
        if "/exec?" not in call.path:
            return False
        call.accept_exec()
        for channel, content in messages:
            data = bytes((channel,)) + content
            call.wfile.write(bytes((0x82, len(data))) + data)
        call.hang_up()
        return True

    return send


def told(status: dict[str, Any]) -> bytes:
    return json.dumps(status).encode()


# --------------------------------------------------------------------------------------- waiting


class WaitedLongEnoughError(Exception):
    """The test has seen that it waits."""


def test_a_pod_that_cannot_be_asked_at_the_moment_is_not_removed(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    place = having_pod(server, request_, signed="earlier", **RUNNING)
    asked = []

    def no_exec(call: Request) -> bool:
        if "/exec?" in call.path:
            asked.append(call.path)
            call.refuse(500, "dial tcp 10.0.0.1:10250: i/o timeout")
            call.hang_up()
        elif "watch=true" in call.path:
            call.answer(410, {"kind": "Status"})
        else:
            return False
        return True

    def proceed() -> None:
        if len(asked) == 3:
            raise WaitedLongEnoughError

    server.faults.append(no_exec)
    newer = replace(request_, attempt_count=2)
    with pytest.raises(WaitedLongEnoughError):
        ownership(adapter, newer).adoptable(proceed)
    assert "svc.discarded-by" not in server.objects[place]["metadata"]["annotations"]


def test_who_waits_for_anothers_probe_of_policies_can_be_cancelled(
    adapter: KubernetesAdapter,
) -> None:
    def proceed() -> None:
        raise WaitedLongEnoughError

    with adapter.proof._lock, pytest.raises(WaitedLongEnoughError):
        adapter.proof.require(proceed)


def test_a_volume_that_another_launch_takes_at_that_moment_is_not_removed(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    place = f"{CORE}/persistentvolumeclaims/{claim_name(request_.workspace_id, 'home')}"
    volume_claims.prepare(adapter.cluster, replace(request_, volumes=(HOME,)), PodOptions())

    def taken() -> None:
        if asked:
            raise WaitedLongEnoughError
        asked.append("once")
        server.merge(place, {"metadata": {"annotations": {"svc.holder": "another"}}})

    asked: list[str] = []
    fresh = replace(request_, volumes=(HOME,), fresh_volumes=True, before_removal=taken)
    with pytest.raises(WaitedLongEnoughError):
        volume_claims.prepare(adapter.cluster, fresh, PodOptions())
    assert server.objects[place]["metadata"]["annotations"] == {"svc.holder": "another"}


def test_a_launch_does_not_wait_longer_than_it_may_for_a_volume_that_is_being_removed(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    place = f"{CORE}/persistentvolumeclaims/{claim_name(request_.workspace_id, 'home')}"
    wanted = replace(request_, volumes=(HOME,))
    volume_claims.prepare(adapter.cluster, wanted, PodOptions())
    server.merge(place, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})

    def proceed() -> None:
        raise WaitedLongEnoughError

    with pytest.raises(WaitedLongEnoughError):
        volume_claims.prepare(adapter.cluster, wanted, PodOptions(), proceed)


def test_a_policy_that_was_taken_away_while_the_pod_started_is_there_again_before_it_runs(
    server: SmallApiServer, adapter: KubernetesAdapter, request_: LaunchRequest
) -> None:
    policy = f"{POLICIES}/{pod_name(request_.run_id)}"
    seen: list[bool] = []

    def started(call: Request) -> bool:
        if call.command == "POST" and call.path.endswith("/pods"):
            # As the removal of an earlier Pod does it at that moment.
            server.objects.pop(policy)
            name = call.body["metadata"]["name"]
            call.answer(201, server.store(f"{CORE}/pods/{name}", call.body | {"status": RUNNING}))
            return True
        if "/exec?" in call.path:
            seen.append(policy in server.objects)
            if len(seen) == 1:
                call.accept_exec()  # it can be reached, and the next one is to begin it
            else:
                call.refuse(403, "no exec")
            call.hang_up()
            return True
        return False

    server.faults.append(started)
    with pytest.raises(LaunchError, match="does not allow an exec"):
        launch(adapter, request_)
    assert seen[1]


def test_the_pods_of_a_probe_reach_no_more_than_they_try_and_leave_nothing(
    server: SmallApiServer, adapter: KubernetesAdapter
) -> None:
    rules: dict[str, list[Any]] = {}

    def probed(call: Request) -> bool:
        if call.command != "POST":
            return False
        labels, name = call.body["metadata"]["labels"], call.body["metadata"]["name"]
        if call.path.endswith("/pods"):
            chosen = server.objects[f"{POLICIES}/{name}"]["spec"]["podSelector"]["matchLabels"]
            assert chosen.items() <= labels.items()
            code = {"allowed": 0, "denied": 7}[labels["svc.probe-side"]]
            state = {"terminated": {"exitCode": code}}
            call.body["status"] = {"containerStatuses": [{"name": "workspace", "state": state}]}
        else:
            rules[name.rpartition("-")[2]] = call.body["spec"]["egress"]
        return False

    server.faults.append(probed)
    assert adapter.proof.problem() == ""
    assert rules["denied"] == []
    (rule,) = rules["allowed"]
    ports = {each["port"] for each in rule.pop("ports")}
    assert ports == {443, 6443, server.server_address[1]}
    assert rule == {}
    assert server.objects == {}
