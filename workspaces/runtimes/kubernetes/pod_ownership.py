"""Whose Pod it is: adopting one, making way for a new one, never taking a newer launch's.

The annotations ``svc.attempt-count`` and ``svc.token`` say which launch relies on a Pod,
``svc.discarded-by`` that it is to be removed. Each is written only into the very version that was
looked at, so of two launches that meet one fails and looks again.

A Pod that has not begun is adopted as well: a node that is told to remove a Pod while it starts its
containers takes more than a minute for that. Its earlier launch may still give it a configuration,
so it is never removed by force by another launch than the one that made it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import inside, pod_state
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    PODS,
    Cluster,
    Conflict,
    Document,
    annotations_of,
    labels_of,
)
from workspaces.runtimes.kubernetes.inside import Given
from workspaces.runtimes.kubernetes.pod_removal import end_in_order, remove_pod, remove_policy
from workspaces.runtimes.kubernetes.pods import (
    ATTEMPT_COUNT,
    DISCARDED,
    TOKEN,
    WORKSPACE,
    PodOptions,
    pod_name,
)

WATCH_SECONDS = 1
UNSTARTED_SECONDS = 10.0
"""How long another launch that seems to be at work on a Pod is waited for."""

logger = structlog.get_logger(__name__)


class PodOwnership:
    """What one launch may do with the Pod of its run; ``token`` is what it signs with."""

    def __init__(
        self,
        cluster: Cluster,
        request: LaunchRequest,
        cancelled: threading.Event,
        options: PodOptions,
        token: str,
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._cancelled = cancelled
        self._options = options
        self._token = token
        self._name = pod_name(request.run_id)

    def adoptable(self, proceed: Callable[[], None]) -> tuple[Document, bool] | None:
        """Return an earlier launch's Pod to go on with and whether it has begun, or make way.

        ``proceed`` raises when that takes too long. Raises ``launch-superseded`` when a newer
        launch owns it.
        """
        first_seen: dict[str, float] = {}
        while (pod := self._cluster.get(PODS, self._name)) is not None:
            proceed()
            self._require_ours(pod)
            seconds = time.monotonic() - first_seen.setdefault(uid_of(pod), time.monotonic())
            if pod_state.is_terminating(pod):
                self._let_go(pod)
                continue
            if DISCARDED in annotations_of(pod) and seconds < UNSTARTED_SECONDS:
                self.look_again(pod)
                continue
            given = self._given(pod) if self._is_of_use(pod) else Given.PART
            if given is Given.ALL or (
                given is Given.NOTHING and (seconds >= UNSTARTED_SECONDS or not self._is_peer(pod))
            ):
                if (adopted := self._mark(pod)) is not None:
                    return adopted, given is Given.ALL
            elif self._is_of_use(pod) and seconds < UNSTARTED_SECONDS:
                self.look_again(pod)
            else:
                self._discard(pod)
        return None

    def mine(self, pod: Document) -> Document:
        """Return a Pod; raises ``launch-superseded`` when another launch has adopted it."""
        if annotations_of(pod).get(TOKEN) != self._token:
            raise superseded()
        return pod

    def _require_ours(self, pod: Document) -> None:
        if labels_of(pod).get(INSTANCE_LABEL) != self._cluster.instance_id:
            raise LaunchError(
                "launch-refused", "A Pod of another program has the workspace's name."
            )
        if _count(pod) > self._request.attempt_count:
            raise superseded()

    def _is_of_use(self, pod: Document) -> bool:
        """Whether a Pod is as it should be, or may become so."""
        image = self._options.image(self._request.image)
        same = any(
            each["name"] == WORKSPACE and each["image"] == image
            for each in pod["spec"]["containers"]
        )
        over = pod_state.ended(pod) is not None or pod_state.is_over(pod)
        return same and not over and DISCARDED not in annotations_of(pod)

    def _given(self, pod: Document) -> Given | None:
        """Return what a Pod was given; None when the cluster does not let it be asked."""
        if not pod_state.is_running(pod):
            return Given.NOTHING
        try:
            return inside.given(self._cluster, self._name)
        except LaunchError:
            return None

    def _is_peer(self, pod: Document) -> bool:
        """Whether the launch that has it has our count: it is about to go on, or it has died."""
        held_by = annotations_of(pod).get(TOKEN)
        return held_by != self._token and _count(pod) == self._request.attempt_count

    def _mark(self, pod: Document) -> Document | None:
        """Write that the Pod is ours; None when it has changed meanwhile."""
        return self._annotate(
            pod, {ATTEMPT_COUNT: str(self._request.attempt_count), TOKEN: self._token}
        )

    def _annotate(self, pod: Document, annotations: dict[str, str]) -> Document | None:
        version = pod["metadata"]["resourceVersion"]
        changed = {"metadata": {"annotations": annotations, "resourceVersion": version}}
        try:
            return self._cluster.patch(PODS, self._name, changed)
        except Conflict:
            return None

    def _discard(self, pod: Document, *, in_order: bool = False, given: bool = True) -> bool:
        """Remove a Pod; False when a launch has adopted it meanwhile, True when it goes."""
        if self._request.before_discard is not None and pod_state.is_running(pod):
            self._request.before_discard()
        while True:
            current = self._cluster.get(PODS, self._name)
            if current is None or uid_of(current) != uid_of(pod):
                return True
            adopted = _marks(current) != _marks(pod)
            if adopted and annotations_of(current).get(TOKEN) != self._token:
                return False
            if pod_state.is_terminating(current):
                return True
            if (marked := self._annotate(current, {DISCARDED: self._token})) is not None:
                break
        if given:
            self._collect(marked, in_order=in_order)
        remove_pod(self._cluster, marked, given=given)
        return True

    def _collect(self, pod: Document, *, in_order: bool) -> None:
        """Let the caller take out of a Pod what must outlive it.

        When the run goes on elsewhere the agent is killed instead of stopped: it would end the
        run's record.
        """
        if self._request.collect is None:
            return
        try:
            seconds = 5.0 if in_order and not self._cancelled.is_set() else 0.0
            end_in_order(self._cluster, pod, seconds)
            self._request.collect(inside.reader(self._cluster, self._name, running=lambda: False))
        except LaunchError as error:
            logger.warning("pod_not_collected", pod=self._name, reason=error.message)

    def clean_up(self, pod: Document, *, in_order: bool, given: bool = True) -> None:
        """Discard after a failure without hiding it: what stays behind is found by its labels."""
        try:
            current = self._cluster.get(PODS, self._name)
            if current is None or annotations_of(current).get(TOKEN) != self._token:
                return
            # Its network policy stays until the Pod is gone; ``sweep_networks`` removes it then.
            self._discard(pod, in_order=in_order, given=given)
        except LaunchError as error:
            logger.warning("pod_left_behind", pod=self._name, reason=error.message)

    def withdraw(self, error: LaunchError) -> None:
        """Leave nothing of a creation that has failed; where no answer came there may be a Pod."""
        try:
            pod = self._cluster.get(PODS, self._name)
            if pod is None:
                remove_policy(self._cluster, self._name)
            elif annotations_of(pod).get(TOKEN) == self._token:
                self.clean_up(pod, in_order=False, given=False)
        except LaunchError as failed:
            logger.warning(
                "pod_left_behind", pod=self._name, reason=failed.message, after=error.code
            )

    def displaced(self, pod: Document) -> LaunchError:
        """Return the error for a Pod of ours that went away before it was ready."""
        found = self._cluster.get(PODS, self._name)
        if found is not None and (
            uid_of(found) != uid_of(pod) or DISCARDED in annotations_of(found)
        ):
            return superseded()
        return LaunchError(
            "container-exited", "The Pod was removed while the workspace was starting."
        )

    def look_again(self, pod: Document) -> Document:
        """Wait for a change of a Pod, for a moment; its state then, or how it was in the end."""
        version = pod["metadata"]["resourceVersion"]
        name = pod["metadata"]["name"]
        for changed in self._cluster.watch(PODS, name, version, seconds=WATCH_SECONDS):
            if changed.pop("deleted"):
                changed["metadata"].setdefault(
                    "deletionTimestamp", changed["metadata"]["creationTimestamp"]
                )
                return _as_gone(changed)
            return changed
        return self._cluster.get(PODS, name) or _as_gone(pod)

    def _let_go(self, pod: Document) -> None:
        """Wait a moment for a Pod to be gone; raises when nobody will say that it is."""
        lost = pod_state.final_reason(pod)
        if lost is not None and lost.code == "node-lost":
            raise LaunchError("node-lost", f"An earlier Pod is not proven gone. {lost.message}")
        self.look_again(pod)


def _as_gone(pod: Document) -> Document:
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": _soon()}}


def _soon() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def uid_of(pod: Document) -> str:
    """Return a Pod's id, which no two ever have."""
    return str(pod["metadata"]["uid"])


def _count(pod: Document) -> int:
    try:
        return int(annotations_of(pod).get(ATTEMPT_COUNT, "0"))
    except ValueError:
        return 0


def _marks(pod: Document) -> tuple[str | None, int]:
    return annotations_of(pod).get(TOKEN), _count(pod)


def superseded() -> LaunchError:
    """Return the error for a launch that is not the newest any more."""
    return LaunchError("launch-superseded", "A newer launch of the workspace has taken over.")
