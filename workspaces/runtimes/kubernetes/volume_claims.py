"""The volume claims of a persistent workspace, and which Pod may use them.

Nothing in Kubernetes keeps two Pods of one node off the same volume, and a Pod of a node that does
not answer may still be writing. So a claim names its holder, the run whose Pod it is for, and that
is changed only where nobody else has changed it in between (the object's version). A launch first
takes the claims, then looks for other Pods of the workspace and waits until none is left; and when
it has created its Pod it looks once more whether it still holds them, before that Pod is given
anything to run. Of two launches at once the later one to take them sees the other's Pod, or the
other sees that it holds them no more: never do both run.

A Pod is gone when the API server has it no more, which is when its node has said that its processes
have ended. Nothing here removes one by force.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from uuid import UUID

from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import pod_state
from workspaces.runtimes.kubernetes.cluster import (
    CLAIMS,
    INSTANCE_LABEL,
    PODS,
    RUN_LABEL,
    WORKSPACE_LABEL,
    Cluster,
    Conflict,
    Document,
    annotations_of,
    labels_of,
)
from workspaces.runtimes.kubernetes.pods import PodOptions, claim_name

HOLDER = "svc.holder"
ROUNDS = 20
REMOVAL_SECONDS = 60.0
REMOVAL_TICK_SECONDS = 0.5


def prepare(
    cluster: Cluster,
    request: LaunchRequest,
    options: PodOptions,
    proceed: Callable[[], object] = lambda: None,
) -> None:
    """Have the workspace's claims, held for the request's run.

    Raises ``launch-refused`` when one of that name is not this installation's, and what
    ``request.before_removal`` raises, and ``proceed``, which is called while it waits.
    """
    labels = _labels(cluster, request.workspace_id)
    for volume in request.volumes:
        name = claim_name(request.workspace_id, volume.purpose)
        if request.fresh_volumes:
            _empty(cluster, name, request, labels)
        purpose = {"svc.purpose": volume.purpose}
        _hold(cluster, name, request, labels | purpose, options, proceed)


def holds(cluster: Cluster, request: LaunchRequest) -> bool:
    """Whether the workspace's claims are still held for the request's run."""
    names = [claim_name(request.workspace_id, volume.purpose) for volume in request.volumes]
    found = [cluster.get(CLAIMS, name) for name in names]
    return all(each is not None and _is_held(each, request) for each in found)


def other_pods(cluster: Cluster, request: LaunchRequest) -> list[Document]:
    """Return the Pods of the workspace's other runs, also those that are being removed."""
    if not request.volumes:
        return []
    found = cluster.list(PODS, _labels(cluster, request.workspace_id))
    return [each for each in found if labels_of(each).get(RUN_LABEL) != str(request.run_id)]


def in_use(others: list[Document]) -> LaunchError:
    """Return the error for volumes that another Pod may still use."""
    for pod in others:
        lost = pod_state.final_reason(pod)
        if lost is not None and lost.code == "node-lost":
            return LaunchError(
                "node-lost", f"The workspace's earlier Pod is not proven gone. {lost.message}"
            )
    return LaunchError("volume-in-use", "An earlier Pod of the workspace still uses its volume.")


def remove_all(cluster: Cluster, workspace_id: UUID) -> int:
    """Remove the claims of a workspace, which no Pod may use any more; return how many."""
    labels = _labels(cluster, workspace_id)
    if any(RUN_LABEL in labels_of(pod) for pod in cluster.list(PODS, labels)):
        raise LaunchError("volume-in-use", "A Pod still uses a volume of the workspace.")
    return sum(_remove(cluster, claim) for claim in cluster.list(CLAIMS, labels))


def workspaces_with_claims(cluster: Cluster) -> set[UUID]:
    """Return the workspaces that have claims of this installation."""
    found = set()
    for claim in cluster.list(CLAIMS, {INSTANCE_LABEL: cluster.instance_id}):
        try:
            found.add(UUID(labels_of(claim)[WORKSPACE_LABEL]))
        except (KeyError, ValueError):
            continue
    return found


def _empty(cluster: Cluster, name: str, request: LaunchRequest, labels: Mapping[str, str]) -> None:
    """Remove a claim as it was seen: one that another launch takes meanwhile is looked at again."""
    for _ in range(ROUNDS):
        found = cluster.get(CLAIMS, name)
        if found is None:
            return
        _require_ours(found, labels)
        request.before_removal()
        metadata = found["metadata"]
        with contextlib.suppress(Conflict):
            version = metadata["resourceVersion"]
            cluster.delete(CLAIMS, name, uid=metadata["uid"], version=version)
            return
    raise _taken()


def _hold(
    cluster: Cluster,
    name: str,
    request: LaunchRequest,
    labels: Mapping[str, str],
    options: PodOptions,
    proceed: Callable[[], object],
) -> None:
    holder = {HOLDER: _holder(request)}
    for _ in range(ROUNDS):
        found = cluster.get(CLAIMS, name)
        try:
            if found is None:
                cluster.create(CLAIMS, _claim(name, labels, holder, options))
                return
            _require_ours(found, labels)
            if "deletionTimestamp" in found["metadata"]:
                _wait_for_removal(cluster, name, proceed)
                continue
            if _is_held(found, request):
                return
            version = found["metadata"]["resourceVersion"]
            changed = {"metadata": {"annotations": holder, "resourceVersion": version}}
            if cluster.patch(CLAIMS, name, changed) is not None:
                return
        except Conflict:
            continue
    raise _taken()


def _wait_for_removal(cluster: Cluster, name: str, proceed: Callable[[], object]) -> None:
    """Wait while a claim of that name is being removed, which the cluster does when it can."""
    until = time.monotonic() + REMOVAL_SECONDS
    while (found := cluster.get(CLAIMS, name)) and "deletionTimestamp" in found["metadata"]:
        proceed()
        if time.monotonic() >= until:
            raise LaunchError(
                "volume-in-use", "The cluster has not removed the workspace's earlier volume yet."
            )
        time.sleep(REMOVAL_TICK_SECONDS)


def _taken() -> LaunchError:
    return LaunchError("volume-in-use", "Other launches of the workspace kept taking its volume.")


def _claim(
    name: str, labels: Mapping[str, str], holder: Mapping[str, str], options: PodOptions
) -> Document:
    specification: Document = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": options.volume_size}},
    }
    if options.storage_class:
        specification["storageClassName"] = options.storage_class
    return {
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(holder)},
        "spec": specification,
    }


def _labels(cluster: Cluster, workspace_id: UUID) -> dict[str, str]:
    return {INSTANCE_LABEL: cluster.instance_id, WORKSPACE_LABEL: str(workspace_id)}


def _holder(request: LaunchRequest) -> str:
    return str(request.run_id)


def _is_held(claim: Document, request: LaunchRequest) -> bool:
    return annotations_of(claim).get(HOLDER) == _holder(request)


def _require_ours(claim: Document, labels: Mapping[str, str]) -> None:
    found = labels_of(claim)
    if any(found.get(each) != labels[each] for each in (INSTANCE_LABEL, WORKSPACE_LABEL)):
        raise LaunchError(
            "launch-refused", "A volume of another program has the name of the workspace's volume."
        )


def _remove(cluster: Cluster, claim: Document) -> bool:
    metadata = claim["metadata"]
    try:
        return cluster.delete(CLAIMS, metadata["name"], uid=metadata["uid"])
    except Conflict:
        return False
