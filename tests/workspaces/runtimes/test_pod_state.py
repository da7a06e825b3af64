"""A Pod's state, as servers of several versions describe it, becomes one code for each reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workspaces.runtimes.kubernetes import pod_state
from workspaces.runtimes.kubernetes.cluster import Conflict, refusal

NOW = datetime.now(UTC)
UNANSWERED = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
"""What the cluster says of a Pod whose node has not told of it lately."""


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A Pod in this state."""
    return {
        "metadata": {"name": "svc-1", **metadata},
        "spec": {"nodeName": "n7"},
        "status": status or {},
    }


def waiting(reason: str, message: str = "", name: str = "workspace") -> dict[str, Any]:
    """A container that waits."""
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def stamp(moment: datetime) -> str:
    """A moment as the API server writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (pod({"reason": "Evicted", "message": "The node was low on memory."}), "evicted", "low on"),
        (pod({"reason": "DeadlineExceeded"}), "deadline-exceeded", "limit"),
        (pod({"reason": "Preempting", "message": "for another"}), "preempted", "for another"),
        (
            pod({"conditions": [{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}]}),
            "preempted",
            "higher priority",
        ),
        (pod({"reason": "NodeLost"}), "node-lost", "n7"),
        (
            pod({"conditions": [{"type": "DisruptionTarget", "reason": "DeletionByTaintManager"}]}),
            "node-lost",
            "n7",
        ),
        (pod({}, deletionTimestamp=stamp(NOW - timedelta(hours=1))), "node-lost", "n7"),
        (
            pod({"conditions": UNANSWERED}, deletionTimestamp=stamp(NOW + timedelta(days=1))),
            "node-lost",
            "n7",
        ),
        (pod({"reason": "OutOfmemory", "message": "Node has none"}), "unschedulable", "has none"),
        (pod({"phase": "Failed", "reason": "Shutdown"}), "evicted", "Shutdown"),
    ],
)
def test_why_the_cluster_has_ended_a_pod(found: dict[str, Any], code: str, said: str) -> None:
    error = pod_state.final_reason(found)
    assert error is not None
    assert error.code == code
    assert said in error.message


@pytest.mark.parametrize(
    "found",
    [
        pod(),
        pod({"phase": "Running"}),
        pod({"phase": "Failed"}),
        # It may answer again: then the Pod goes on.
        pod({"conditions": UNANSWERED}),
        pod({}, deletionTimestamp=stamp(NOW + timedelta(days=1))),
    ],
)
def test_a_pod_that_ends_by_itself_or_is_being_removed_has_no_such_reason(
    found: dict[str, Any],
) -> None:
    assert pod_state.final_reason(found) is None


def test_a_pod_that_is_being_removed_does_not_run() -> None:
    running = {"containerStatuses": [{"name": "workspace", "state": {"running": {}}}]}
    assert pod_state.is_running(pod(running))
    assert not pod_state.is_running(pod(running, deletionTimestamp=stamp(NOW)))
    assert not pod_state.is_running(
        pod({"containerStatuses": [{"name": "keeper", "state": {"running": {}}}]})
    )


@pytest.mark.parametrize(
    ("containers", "code", "said", "sure"),
    [
        ([waiting("ErrImagePull", "x: not found")], "image-pull-failed", "not found", True),
        ([waiting("ErrImagePull", "i/o timeout")], "image-pull-failed", "timeout", False),
        (
            [waiting("ImagePullBackOff", "Back-off", "keeper"), waiting("ErrImagePull", "denied")],
            "image-pull-failed",
            "denied",
            True,
        ),
        ([waiting("CreateContainerConfigError", "no key")], "container-config-error", "key", True),
        ([waiting("CreateContainerError", "busy")], "container-config-error", "busy", False),
        (
            [{"name": "workspace", "state": {"terminated": {"reason": "StartError"}}}],
            "container-config-error",
            "cannot start",
            True,
        ),
    ],
)
def test_why_containers_do_not_start(
    containers: list[dict[str, Any]], code: str, said: str, sure: bool
) -> None:
    found = pod_state.start_failure(pod({"containerStatuses": containers}))
    assert found is not None
    error, certain = found
    assert (error.code, certain) == (code, sure)
    assert said in error.message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("0/3 nodes are available: 3 Insufficient memory.", "unschedulable"),
        ('persistentvolumeclaim "svc-1-home" not found', "volume-unbound"),
        ("pod has unbound immediate PersistentVolumeClaims", "volume-unbound"),
    ],
)
def test_a_pod_without_a_node_may_get_one(message: str, code: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    found = pod_state.start_failure(pod({"conditions": [condition]}))
    assert found is not None
    assert (found[0].code, found[1]) == (code, False)


def test_a_container_that_only_begins_is_no_failure() -> None:
    assert (
        pod_state.start_failure(pod({"containerStatuses": [waiting("ContainerCreating")]})) is None
    )
    assert pod_state.start_failure(pod()) is None


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (403, 'pods "a" is forbidden: exceeded quota: q', "quota-exceeded"),
        (403, 'pods is forbidden: User "u" cannot create', "adapter-unavailable"),
        (403, 'pods "a" is forbidden: violates PodSecurity "restricted"', "admission-refused"),
        (403, 'pod rejected: RuntimeClass "runsc" not found', "oci-runtime-missing"),
        (422, "spec is invalid", "admission-refused"),
        (401, "Unauthorized", "adapter-unavailable"),
        (500, "etcdserver: leader changed", "adapter-unavailable"),
        (503, "", "adapter-unavailable"),
    ],
)
def test_what_a_refusal_of_the_api_server_means(status: int, message: str, code: str) -> None:
    import json

    error = refusal(status, json.dumps({"message": message}).encode())
    assert getattr(error, "code", None) == code


def test_a_name_that_is_taken_is_a_conflict() -> None:
    assert isinstance(refusal(409, b'{"message": "pods already exists"}'), Conflict)
