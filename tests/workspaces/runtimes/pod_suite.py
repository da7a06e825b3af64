"""What only Pods have: why they are not there, who holds a volume, what a policy keeps away.

Imported by the file that has a cluster and a fixture ``pods``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import step
from tests.workspaces.runtimes.dropped_connections import behind_relay, with_dropped
from tests.workspaces.runtimes.pod_launcher import PodLauncher
from tests.workspaces.runtimes.runtime_suite import HOME, out_of_time, running, shell
from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import pod_ownership, pod_state
from workspaces.runtimes.kubernetes.cluster import CLAIMS, PODS, POLICIES, Conflict, Document
from workspaces.runtimes.kubernetes.network_policies import NetworkProof
from workspaces.runtimes.kubernetes.pod_channel import ExecChannel
from workspaces.runtimes.kubernetes.pods import claim_name, pod_for, pod_name
from workspaces.runtimes.kubernetes.preflight import RIGHTS

QUOTAS = "resourcequotas"
RANGES = "limitranges"


@contextmanager
def having(pods: PodLauncher, kind: str, name: str, document: Document) -> Iterator[None]:
    """Have an object in the namespace that only its operator may make."""
    admin = pods.place.admin
    made = admin.create(kind, {"metadata": {"name": name}} | document)
    try:
        yield
    finally:
        admin.delete(kind, name, uid=made["metadata"]["uid"])


def refused(pods: PodLauncher, **changes: Any) -> LaunchError:
    """Why a launch fails; all that it made is gone or going then."""
    with pytest.raises(LaunchError) as caught:
        pods.launch(pods.request(**changes))
    assert pods.left_over() == []
    return caught.value


# ------------------------------------------------------------------------- why it is not there


def test_a_pod_that_no_node_has_room_for_is_unschedulable(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods(start_timeout=1.0)

    def has_no_room() -> bool:
        error = refused(pods, memory_mb=999_999)
        assert error.code == "unschedulable", error.message
        # A node that has just come takes nothing at first, for other reasons.
        return "Insufficient memory" in error.message

    eventually(has_no_room, what="the node is asked for room")


def test_a_quota_that_is_used_up_is_told_as_such(pods: PodLauncher) -> None:
    with having(pods, QUOTAS, "none", {"spec": {"hard": {"pods": "0"}}}):
        settled = {"pods": "0"}
        eventually(
            lambda: (
                (pods.place.admin.get(QUOTAS, "none") or {}).get("status", {}).get("hard")
                == settled
            ),
            what="the quota counts",
        )
        error = refused(pods)
    assert error.code == "quota-exceeded"
    assert "exceeded quota: none" in error.message


def test_what_the_cluster_does_not_admit_is_told_as_such(pods: PodLauncher) -> None:
    limit = {"spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}}
    with having(pods, RANGES, "small", limit):
        error = refused(pods)
    assert error.code == "admission-refused"
    assert "maximum memory usage per Container is 64Mi" in error.message


def test_a_runtime_class_that_the_cluster_lacks_is_named(pods: PodLauncher) -> None:
    error = refused(pods, oci_runtime="runsc")
    assert error.code == "oci-runtime-missing"
    assert "runsc" in error.message


def test_a_container_that_its_node_cannot_make_is_a_config_error(
    make_pods: Callable[..., PodLauncher],
) -> None:
    # A folder cannot be mounted on a file.
    error = refused(make_pods(start_timeout=15.0), volumes=(replace(HOME, path="/etc/passwd"),))
    assert error.code == "container-config-error"


def test_a_volume_that_nobody_provides_is_told_as_such(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods(start_timeout=1.0, pods={"storage_class": "no-such-class"})
    error = refused(pods, volumes=(HOME,))
    assert error.code == "volume-unbound"
    assert "PersistentVolumeClaim" in error.message


def test_a_pod_that_ran_out_of_memory_says_so_in_the_end(pods: PodLauncher) -> None:
    request = pods.request(memory_mb=64)
    pods.launch(request)
    shell(pods, request.run_id, "head -c 200M /dev/zero | tail >/dev/null")
    pods.adapter.stop(request.run_id, seconds=20)
    observed = pods.adapter.observe(request.run_id)
    assert observed is not None
    assert (observed.running, observed.oom_killed) == (False, True)


def test_a_pod_that_uses_more_disk_than_it_may_is_evicted_with_the_kubelets_words(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods(pods={"ephemeral_storage": "20Mi"})
    request = pods.request()
    pods.launch(request)
    shell(pods, request.run_id, "head -c 60M /dev/urandom > ~/too-much; sync")
    ended = until_ended(pods, request.run_id, what="it is evicted")
    assert ended[0] == "evicted"
    assert "exceeds the total limit" in ended[1]


def test_a_pod_that_is_ended_at_a_deadline_of_the_cluster_says_so(pods: PodLauncher) -> None:
    request = pods.request()
    pods.launch(request)
    change = {"spec": {"activeDeadlineSeconds": 1}}
    pods.place.admin.patch(PODS, pod_name(request.run_id), change)
    ended = until_ended(pods, request.run_id, what="it is ended")
    assert ended[0] == "deadline-exceeded"


def test_a_pod_that_makes_room_for_a_more_important_one_is_preempted(pods: PodLauncher) -> None:
    request = pods.request()
    runtime = pods.launch(request)
    # As the scheduler does it: an event, and then the Pod's removal.
    pods.place.admin.create(
        "events",
        {
            "metadata": {"generateName": "preempted-"},
            "involvedObject": {
                "kind": "Pod",
                "namespace": pods.place.name,
                "name": runtime.reference,
                "uid": runtime.resource_id,
            },
            "reason": "Preempted",
            "message": "Preempted by other/important on node n1",
            "type": "Normal",
        },
    )
    pods.place.admin.delete(PODS, runtime.reference, uid=runtime.resource_id)
    ended = until_ended(pods, request.run_id, what="it goes away")
    assert ended == ("preempted", ended[1])
    assert "Preempted by other/important" in ended[1]


def until_ended(pods: PodLauncher, run_id: Any, *, what: str) -> tuple[str, str]:
    """Wait until the cluster has ended it; code and message of why."""
    found = eventually(lambda: ended_code(pods, run_id), what=what)
    assert found is not None
    return found


def ended_code(pods: PodLauncher, run_id: Any) -> tuple[str, str] | None:
    """Code and message of why the cluster has ended it."""
    observed = pods.adapter.observe(run_id)
    if observed is None or not observed.ended_code:
        return None
    assert not observed.running
    return observed.ended_code, observed.ended_message


# ------------------------------------------------------------------------------- who holds what


def test_no_second_pod_is_made_on_a_volume_while_the_first_is_not_gone(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods()
    request = pods.request(volumes=(HOME,), fresh_volumes=True)
    pods.launch(request)
    again = pods.request(workspace_id=request.workspace_id, volumes=(HOME,))
    error = out_of_time(pods, again, lambda error: error.code == "volume-in-use")
    assert error.code == "volume-in-use"
    assert pods.left_over() == [pod_name(request.run_id)]


def test_a_pod_that_does_not_go_away_keeps_its_volume_and_its_node_counts_as_lost(
    pods: PodLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = pods.request(volumes=(HOME,), fresh_volumes=True)
    runtime = pods.launch(request)
    admin, name = pods.place.admin, runtime.reference
    # As a node that does not answer leaves it: to be removed, and never gone.
    admin.patch(PODS, name, {"metadata": {"finalizers": ["svc.test/held"]}})
    try:
        pods.adapter.remove_containers(request.run_id)
        assert not running(pods, request.run_id)
        monkeypatch.setattr(pod_state, "OVERDUE", timedelta(seconds=-5))
        assert until_ended(pods, request.run_id, what="it counts as lost")[0] == "node-lost"
        again = pods.request(workspace_id=request.workspace_id, volumes=(HOME,))
        with pytest.raises(LaunchError) as caught:
            pods.launch(again)
        assert caught.value.code == "node-lost"
        assert "not proven gone" in caught.value.message
        with pytest.raises(LaunchError) as caught:
            pods.launch(replace(request, attempt_count=2))
        assert caught.value.code == "node-lost"
        assert [pod["metadata"]["name"] for pod in pods.pods()] == [name]
    finally:
        admin.patch(PODS, name, {"metadata": {"finalizers": None}})


def test_a_launch_whose_volume_another_has_taken_gives_its_pod_nothing_to_run(
    pods: PodLauncher,
) -> None:
    request = pods.request(volumes=(HOME,), fresh_volumes=True)
    name = claim_name(request.workspace_id, "home")
    create = pods.adapter.cluster.create

    def create_and_lose(kind: str, document: Document) -> Document:
        made: Document = create(kind, document)
        if kind == PODS:
            taken = {"metadata": {"annotations": {"svc.holder": "another run"}}}
            pods.place.admin.patch(CLAIMS, name, taken)
        return made

    pods.adapter.cluster.create = create_and_lose
    with pytest.raises(LaunchError) as caught:
        pods.launch(request)
    assert caught.value.code == "launch-superseded"
    assert pods.left_over() == []


def made_by_another(pods: PodLauncher, request: LaunchRequest) -> str:
    """Have the Pod of a launch that died before it gave it anything; return its id."""
    pod = pod_for(replace(request, attempt_count=1), pods.adapter.options, "another launch")
    return str(pods.adapter.cluster.create(PODS, pod)["metadata"]["uid"])


def until_running(pods: PodLauncher, request: LaunchRequest) -> None:
    """Wait until the container of a run's Pod waits for its configuration."""
    eventually(
        lambda: pod_state.is_running(pods.pod(request.run_id)),
        what="its container runs",
    )


@pytest.mark.parametrize("runs", [False, True])
def test_a_pod_that_was_not_given_its_configuration_is_adopted_by_a_newer_launch(
    pods: PodLauncher, runs: bool
) -> None:
    setup = {"setup": [step("touch own")]}
    request = pods.request(attempt_count=2, boot=setup, timeout=LONG_WAIT)
    made = made_by_another(pods, request)
    if runs:
        until_running(pods, request)
    runtime = pods.launch(request)
    assert runtime.resource_id == made
    assert shell(pods, request.run_id, "ls own") == (0, "own\n")
    observed = pods.adapter.observe(request.run_id)
    assert observed is not None
    assert observed.attempt_count == 2


def test_a_pod_that_has_only_a_part_of_its_configuration_is_replaced(
    pods: PodLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = pods.request(attempt_count=2, timeout=LONG_WAIT)
    made = made_by_another(pods, request)
    until_running(pods, request)
    # As an exec that was cut leaves it.
    with contextlib.closing(
        ExecChannel.open(
            pods.adapter.cluster.access,
            pods.place.name,
            pod_name(request.run_id),
            "workspace",
            ["/bin/mkdir", "/var/lib/svc/given"],
            timeout=LONG_WAIT,
            framed=False,
        )
    ) as channel:
        answer = channel.answer(b"", LONG_WAIT)
    assert answer is not None
    assert answer.exit_code == 0
    monkeypatch.setattr(pod_ownership, "UNSTARTED_SECONDS", 1.0)
    assert pods.launch(request).resource_id != made
    assert running(pods, request.run_id)


def test_a_launch_whose_pod_a_newer_one_has_adopted_leaves_it_alone(pods: PodLauncher) -> None:
    request = pods.request(timeout=LONG_WAIT)
    create = pods.adapter.cluster.create

    def create_and_lose(kind: str, document: Document) -> Document:
        made: Document = create(kind, document)
        if kind == PODS:
            newer = {"svc.attempt-count": "2", "svc.token": "a newer launch"}
            name = document["metadata"]["name"]
            pods.place.admin.patch(PODS, name, {"metadata": {"annotations": newer}})
        return made

    pods.adapter.cluster.create = create_and_lose
    with pytest.raises(LaunchError) as caught:
        pods.launch(request)
    assert caught.value.code == "launch-superseded"
    assert pods.left_over() == [pod_name(request.run_id)]


def test_a_pod_that_took_the_name_meanwhile_is_not_removed(pods: PodLauncher) -> None:
    request = pods.request()
    runtime = pods.launch(request)
    with pytest.raises(Conflict):
        pods.adapter.cluster.delete(PODS, runtime.reference, uid="0" * 36)
    assert pods.left_over() == [runtime.reference]


# --------------------------------------------------------------------------- calls of the agent

RELAYS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^/var/lib/svc/relay.py$'"


def test_calls_one_after_the_other_go_over_one_exec(pods: PodLauncher) -> None:
    request = pods.request(outbound=True)
    pods.launch(request)
    for _ in range(5):
        answer = pods.adapter.call_agent(request.run_id, ["status"], timeout=LONG_WAIT)
        assert answer.exit_code == 0
    # The one that asks is that of the calls, and of the launch.
    assert shell(pods, request.run_id, RELAYS) == (0, "1\n")


def test_calls_at_the_same_time_get_each_their_own_answer(pods: PodLauncher) -> None:
    request = pods.request(outbound=True)
    pods.launch(request)
    with ThreadPoolExecutor(6) as pool:
        said = list(
            pool.map(lambda number: shell(pods, request.run_id, f"echo {number}"), range(24))
        )
    assert said == [(0, f"{number}\n") for number in range(24)]


def test_a_call_that_was_given_up_leaves_nothing_to_the_next_one(pods: PodLauncher) -> None:
    request = pods.request(outbound=True)
    pods.launch(request)
    for _ in range(3):
        pods.adapter.open_agent(request.run_id, ["session"]).close()
        answer = pods.adapter.call_agent(request.run_id, ["no-such-thing"], timeout=LONG_WAIT)
        assert (answer.exit_code, answer.stdout) == (2, b"")
        assert b"subcommand" in answer.stderr


def test_after_connections_were_cut_the_next_call_goes_over_a_new_one(pods: PodLauncher) -> None:
    request = pods.request(outbound=True)
    pods.launch(request)
    with behind_relay(pods) as (relay, adapter):
        for _ in range(3):
            answer = adapter.call_agent(request.run_id, ["status"], timeout=LONG_WAIT)
            assert answer.exit_code == 0
            relay.cut_all()


# What is cut takes a part of the time of the whole.
DROPS = 300


def test_no_byte_is_lost_or_comes_twice_when_connections_are_cut(pods: PodLauncher) -> None:
    found = with_dropped(pods, DROPS)
    assert found.drops >= DROPS
    assert found.received > 0
    assert (found.lost, found.twice) == (0, 0)


# -------------------------------------------------------------------------- networks and rights


def test_policies_of_pods_that_are_gone_are_swept_and_those_of_others_stay(
    pods: PodLauncher,
) -> None:
    request = pods.request()
    pods.launch(request)
    assert pods.adapter.sweep_networks(()) == 0
    pods.adapter.remove_containers(request.run_id)
    eventually(lambda: pods.pods() == [], what="the Pod is gone")
    assert pods.adapter.sweep_networks([request.run_id]) == 0
    assert pods.adapter.sweep_networks(()) == 1
    assert pods.place.admin.list(POLICIES, {"svc.instance": pods.instance_id}) == []


def test_an_egress_policy_is_refused(pods: PodLauncher) -> None:
    error = refused(pods, outbound=True, egress=lambda bridge: None)
    assert error.code == "egress-not-enforced"


def test_without_enforcement_nothing_is_launched_that_must_not_reach_anything(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods()
    enforcer = pods.place.enforcer
    if enforcer is None:
        pytest.fail("only our own cluster can be had without enforcement")
    options = pods.adapter.options
    proof = NetworkProof(pods.adapter.cluster, options.probe_image, options.pull_secret)
    pods.adapter.proof = proof
    with enforcer.suspended():
        error = refused(pods)
        assert error.code == "network-not-guarded"
        assert "does not enforce them" in error.message


def test_without_an_image_for_the_probe_nothing_is_launched_that_the_guard_is_to_keep_away(
    make_pods: Callable[..., PodLauncher],
) -> None:
    pods = make_pods(guarded=True)
    pods.adapter.proof = NetworkProof(pods.adapter.cluster, "")
    error = refused(pods, outbound=True)
    assert error.code == "network-not-guarded"
    assert "KUBERNETES_PROBE_IMAGE names no image" in error.message


def test_the_account_has_the_rights_of_the_role_and_no_other(pods: PodLauncher) -> None:
    cluster = pods.adapter.cluster
    assert len(RIGHTS) <= 20
    assert all(cluster.may(*right) for right in RIGHTS)
    for verb, resource in (("get", "secrets"), ("list", "nodes"), ("create", "serviceaccounts")):
        assert not cluster.may(verb, resource)
