"""Ending and removing Pods: in order first, by their id always, by force only what never ran."""

from __future__ import annotations

import contextlib
import time

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.kubernetes import inside, pod_state
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    PODS,
    POLICIES,
    Cluster,
    Conflict,
    Document,
    labels_of,
)

KILLED_SECONDS = 5.0
REMOVAL_GRACE_SECONDS = 1
WATCH_SECONDS = 1
ROUNDS = 5


def end_in_order(cluster: Cluster, pod: Document, seconds: float) -> None:
    """Have the workspace's container end, killed after ``seconds``; its keeper goes on.

    Without any seconds only what runs in it is killed: the agent would end the run's record.
    """
    name = pod["metadata"]["name"]
    if not pod_state.is_running(pod):
        return
    try:
        if seconds <= 0:
            inside.kill_all(cluster, name)
            return
        inside.ask_to_end(cluster, name)
        if _has_ended(cluster, pod, seconds):
            return
        inside.kill_all(cluster, name)
        if _has_ended(cluster, pod, KILLED_SECONDS):
            return
    except LaunchError as error:
        if error.code not in ("runtime-gone", "runtime-not-running"):
            raise
        return
    end_from_outside(cluster, pod)
    _has_ended(cluster, pod, KILLED_SECONDS)


def end_from_outside(cluster: Cluster, pod: Document) -> None:
    """End a Pod whose first process cannot be killed from inside. This ends the keeper, too."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    for _ in range(ROUNDS):
        current = cluster.get(PODS, name)
        if current is None or current["metadata"]["uid"] != uid or pod_state.ended(current):
            return
        # Only into the version that was seen: another Pod may get the name.
        version = {"resourceVersion": current["metadata"]["resourceVersion"]}
        with contextlib.suppress(Conflict):
            cluster.patch(PODS, name, {"metadata": version, "spec": {"activeDeadlineSeconds": 1}})
            return


def remove_pod(cluster: Cluster, pod: Document, *, given: bool = True) -> bool:
    """Have a Pod removed; True unless it is gone or another one. Its node takes some seconds.

    One that was never ``given`` its configuration is gone at once: it has nothing to run, and its
    node, which may still be trying to pull its image, would take minutes.
    """
    metadata = pod["metadata"]
    if given and pod_state.is_terminating(pod):
        return True
    try:
        grace = REMOVAL_GRACE_SECONDS if given else 0
        return cluster.delete(PODS, metadata["name"], uid=metadata["uid"], grace=grace)
    except Conflict:
        return False


def remove_policy(cluster: Cluster, name: str) -> bool:
    """Remove the network policy of a run whose Pods are gone; True if there was one."""
    found = cluster.get(POLICIES, name)
    if found is None or labels_of(found).get(INSTANCE_LABEL) != cluster.instance_id:
        return False
    with contextlib.suppress(Conflict):
        return cluster.delete(POLICIES, name, uid=found["metadata"]["uid"])
    return False


def _has_ended(cluster: Cluster, pod: Document, seconds: float) -> bool:
    """Wait until the workspace's container has ended, or the Pod is gone."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    until = time.monotonic() + seconds
    while True:
        current = cluster.get(PODS, name)
        if current is None or current["metadata"]["uid"] != uid:
            return True
        if pod_state.ended(current) is not None:
            return True
        if time.monotonic() >= until:
            return False
        version = current["metadata"]["resourceVersion"]
        next(cluster.watch(PODS, name, version, seconds=WATCH_SECONDS), None)
