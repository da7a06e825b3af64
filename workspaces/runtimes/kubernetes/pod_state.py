"""What has become of a Pod, and why it does not become a workspace: one code for each reason.

=========================  =======================================================================
``unschedulable``          no node has room for it, or may take it
``volume-unbound``         it waits for a volume that the cluster does not provide
``image-pull-failed``      its node cannot get the image
``container-config-error`` its node cannot make or start its containers
``runtime-out-of-memory``  its memory limit was reached, and what ran was killed
``evicted``                its node had too little memory or disk, or it used more disk than allowed
``preempted``              it made room for a Pod of a higher priority
``node-lost``              its node does not answer; what runs there is not known
``deadline-exceeded``      the cluster's own limit of its time was reached
=========================  =======================================================================

``quota-exceeded`` and ``admission-refused`` are answers to its creation (``cluster.refusal``),
``agent-silent`` is the launch's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.boot import one_line
from workspaces.runtimes.kubernetes.cluster import Document
from workspaces.runtimes.kubernetes.pods import WORKSPACE

OVERDUE = timedelta(seconds=60)
"""How long after its time a Pod may be in the API server before its node counts as lost."""
PULL_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
PULL_IS_OF_NO_USE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
PULL_REFUSALS = ("not found", "manifest unknown", "unauthorized", "denied", "x509")
"""What a registry says that it will say again."""
BACK_OFF = "Back-off"
CONFIG_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
START_REASONS = frozenset({"ContainerCannotRun", "StartError"})
VOLUME_WORDS = ("persistentvolumeclaim", "PersistentVolumeClaim", "unbound immediate")


@dataclass(frozen=True, slots=True)
class Ended:
    """How the workspace's own container ended."""

    exit_code: int
    out_of_memory: bool


def is_running(pod: Document) -> bool:
    """Whether the workspace's container runs, as far as the API server knows."""
    return "running" in _state(pod) and not is_terminating(pod)


def is_starting(pod: Document) -> bool:
    """Whether a node has the Pod, and nothing in it has ended or is in trouble."""
    has_node = bool(pod.get("spec", {}).get("nodeName"))
    return has_node and not (is_terminating(pod) or ended(pod) or start_failure(pod))


def is_terminating(pod: Document) -> bool:
    """Whether the Pod is being removed, by whomever."""
    return "deletionTimestamp" in pod["metadata"]


def is_over(pod: Document) -> bool:
    """Whether nothing will run in the Pod any more, whether or not anything did."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def ended(pod: Document) -> Ended | None:
    """Return how the workspace's container ended; None while it has not, or never ran."""
    state = _state(pod).get("terminated")
    if state is None:
        return None
    return Ended(int(state.get("exitCode") or 0), state.get("reason") == "OOMKilled")


def final_reason(pod: Document, events: Sequence[Document] = ()) -> LaunchError | None:
    """Return why the cluster has ended a Pod that did not end by itself; None if it has not.

    ``events`` are those of the Pod, the last one first: servers before 1.26 tell of some reasons
    nowhere else.
    """
    status = pod.get("status", {})
    reason, said = str(status.get("reason") or ""), one_line(str(status.get("message") or ""))
    disruption = _condition(pod, "DisruptionTarget").get("reason")
    if reason == "Preempting" or disruption == "PreemptionByScheduler":
        return LaunchError(
            "preempted", _with("The Pod made room for one of a higher priority", said)
        )
    for event in events:
        if event.get("reason") in ("Preempted", "Preempting"):
            told = one_line(str(event.get("message") or ""))
            return LaunchError(
                "preempted", _with("The Pod made room for one of a higher priority", told)
            )
    if reason == "Evicted":
        return LaunchError("evicted", _with("The node evicted the Pod", said))
    if reason == "DeadlineExceeded":
        return LaunchError(
            "deadline-exceeded", _with("The cluster ended the Pod at its limit", said)
        )
    told_of = reason == "NodeLost" or disruption == "DeletionByTaintManager"
    given_up = is_terminating(pod) and not node_answers(pod)
    if told_of or given_up or _is_overdue(pod):
        node = pod.get("spec", {}).get("nodeName") or "its node"
        return LaunchError(
            "node-lost",
            f"The node {node} does not answer; what runs there is not known until it is back.",
        )
    if reason.startswith("OutOf") or reason in ("NodeAffinity", "UnexpectedAdmissionError"):
        return LaunchError("unschedulable", _with("The node did not take the Pod", said or reason))
    if status.get("phase") == "Failed" and reason and ended(pod) is None:
        return LaunchError("evicted", _with(f"The cluster ended the Pod ({reason})", said))
    return None


def start_failure(pod: Document) -> tuple[LaunchError, bool] | None:
    """Return why the Pod's containers do not start, and whether waiting is of no use."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        said = one_line(str(scheduled.get("message") or ""))
        if any(word in said for word in VOLUME_WORDS):
            return LaunchError("volume-unbound", _with("The Pod waits for its volume", said)), False
        return LaunchError("unschedulable", _with("No node takes the Pod", said)), False
    found = [each for each in map(_container_failure, _statuses(pod)) if each is not None]
    # Of two containers of one image one may only say that it waits before it tries again.
    return max(found, key=lambda each: (each[1], BACK_OFF not in each[0].message), default=None)


class Trouble:
    """What a Pod says about why it does not start, and since when."""

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._since: float | None = None
        self._error: LaunchError | None = None

    def look(self, pod: Document, *, time_left: float) -> None:
        """Raise why it will not start, once that is sure or has lasted too long."""
        failure = start_failure(pod)
        if failure is None:
            self._since = self._error = None
            return
        self._since = self._since or time.monotonic()
        self._error, sure = _clearer(failure, self._error)
        if sure or time.monotonic() - self._since >= self._most_seconds or time_left <= 1:
            raise self._error


def _clearer(
    failure: tuple[LaunchError, bool], before: LaunchError | None
) -> tuple[LaunchError, bool]:
    """Return a failure, with the earlier message where the new one only says that it waits."""
    error, sure = failure
    if before is not None and before.code == error.code and BACK_OFF in error.message:
        return before, sure
    return failure


def _container_failure(container: Document) -> tuple[LaunchError, bool] | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, told = waiting.get("reason"), str(waiting.get("message") or "")
    said = one_line(told, 600)
    if reason in PULL_REASONS:
        sure = reason in PULL_IS_OF_NO_USE or any(each in told for each in PULL_REFUSALS)
        return LaunchError("image-pull-failed", _with("The node cannot get the image", said)), sure
    if reason in CONFIG_REASONS:
        text = _with("The node cannot make the container", said)
        return LaunchError("container-config-error", text), reason != "CreateContainerError"
    terminated = state.get("terminated") or {}
    if terminated.get("reason") in START_REASONS:
        said = one_line(str(terminated.get("message") or ""))
        text = _with("The node cannot start the container", said)
        return LaunchError("container-config-error", text), True
    return None


def seeding_failure(pod: Document) -> LaunchError | None:
    """Return why a volume could not be filled, if it could not."""
    for container in pod.get("status", {}).get("initContainerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated") or {}
        if terminated.get("exitCode"):
            return LaunchError(
                "launch-refused",
                f"The workspace's volume could not be filled: {container.get('name')} ended with "
                f"exit code {terminated['exitCode']}.",
            )
    return None


def node_answers(pod: Document) -> bool:
    """Whether the Pod's node has told of it lately: the cluster withdraws readiness otherwise."""
    ready, containers = _condition(pod, "Ready"), _condition(pod, "ContainersReady")
    return not (ready.get("status") == "False" and containers.get("status") == "True")


def _is_overdue(pod: Document) -> bool:
    """Whether the Pod should have been gone long ago, which only its node can say."""
    told = pod["metadata"].get("deletionTimestamp")
    if told is None:
        return False
    return datetime.now(UTC) - datetime.fromisoformat(told) > OVERDUE


def _state(pod: Document) -> dict[str, Any]:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if container.get("name") == WORKSPACE:
            return container.get("state") or {}
    return {}


def _statuses(pod: Document) -> list[Document]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(pod: Document, kind: str) -> Document:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def _with(text: str, said: str) -> str:
    return f"{text}: {said}" if said else f"{text}."
