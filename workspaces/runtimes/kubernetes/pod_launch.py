"""One launch: from an image digest to a Pod whose agent says that the workspace is ready.

It makes one Pod named ``svc-<run id>``, its network policy, and the claims of a persistent
workspace. All carry the labels in ``pods``.

**Two launches of one run at once** end with one live Pod. The API server gives a name to one only,
and the annotation ``svc.attempt-count`` says who yields: a lower one raises ``launch-superseded``.
Whoever adopts a Pod writes its own count and token there, whoever is to remove one first writes
that; both only into the very version that they have seen, so one of the two fails and looks again.
A Pod is removed by its id: one that took the name meanwhile is not touched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import structlog

from controlplane.errors import JobError
from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import LaunchedRuntime, LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import inside, pod_state, volume_claims
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    PODS,
    Cluster,
    Conflict,
    Document,
    annotations_of,
    labels_of,
)
from workspaces.runtimes.kubernetes.network_policies import NetworkProof, ensure_policy
from workspaces.runtimes.kubernetes.pod_removal import end_in_order, remove_pod, remove_policy
from workspaces.runtimes.kubernetes.pods import (
    ATTEMPT_COUNT,
    DISCARDED,
    TOKEN,
    WORKSPACE,
    PodOptions,
    pod_for,
    pod_name,
)

WATCH_SECONDS = 1
STATUS_WAIT_SECONDS = 2
EXEC_GRACE_SECONDS = 10.0
TICK_SECONDS = 0.2
UNSTARTED_SECONDS = 10.0
ROUNDS = 8

logger = structlog.get_logger(__name__)


class Launch:
    """The steps of one launch, with its deadline and the token it signs the Pod with."""

    def __init__(
        self,
        cluster: Cluster,
        request: LaunchRequest,
        cancelled: threading.Event,
        *,
        options: PodOptions,
        proof: NetworkProof,
        guarded: bool,
        silence: float,
        start_timeout: float,
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._cancelled = cancelled
        self._options = options
        self._proof = proof
        self._guarded = guarded
        self._silence = silence
        self._start_timeout = start_timeout
        self._name = pod_name(request.run_id)
        self._token = uuid4().hex
        self._deadline = time.monotonic() + request.timeout
        self._doing = "the cluster was looked at"

    def run(self) -> LaunchedRuntime:
        """Create or adopt until one Pod is ready, in a bounded number of rounds."""
        self._proceed()
        self._require_network()
        for _ in range(ROUNDS):
            pod = self._adoptable() or self._create()
            if pod is None:
                continue
            try:
                return self._ready(pod)
            except BaseException as error:
                self._clean_up(pod, in_order=isinstance(error, JobError))
                raise
        raise LaunchError("launch-refused", "Other launches of the workspace kept taking its name.")

    # ----------------------------------------------------------------- before there is a Pod

    def _require_network(self) -> None:
        if self._request.egress is not None:
            raise LaunchError(
                "egress-not-enforced",
                "Egress policies by host name are not enforced on Kubernetes: no egress proxy "
                "stands beside the Pods.",
            )
        if self._guarded or not self._request.outbound:
            self._doing = "the cluster's network policies were being probed"
            self._proof.require(self._options.image(self._request.image))
            self._proceed()

    def _proceed(self, status: boot.BootStatus | None = None) -> None:
        """Raise when the launch was cancelled or its time is over."""
        if self._cancelled.is_set():
            raise LaunchError("launch-cancelled", "The launch was cancelled.")
        if time.monotonic() >= self._deadline:
            where = boot.progress_of(status) if status else self._doing
            raise LaunchError(
                "launch-timed-out",
                f"The workspace was not ready after {self._request.timeout:g} s: {where}."
                + (f"\nThe end of its output:\n{status.tail}" if status and status.tail else ""),
            )

    # ------------------------------------------------------------------------------- adopting

    def _adoptable(self) -> Document | None:
        """Return an earlier launch's Pod to go on with, or make way for a new one.

        Raises ``launch-superseded`` when a newer launch owns it.
        """
        first_seen: dict[str, float] = {}
        while (pod := self._cluster.get(PODS, self._name)) is not None:
            self._proceed()
            self._require_ours(pod)
            seconds = time.monotonic() - first_seen.setdefault(_uid(pod), time.monotonic())
            if pod_state.is_terminating(pod):
                self._doing = "an earlier Pod of it was being removed"
                self._let_go(pod)
            elif DISCARDED in annotations_of(pod) and seconds < UNSTARTED_SECONDS:
                self._look_again(pod)
            elif self._is_adoptable(pod):
                if (adopted := self._mark(pod)) is not None:
                    return adopted
            elif self._is_under_way(pod) and seconds < UNSTARTED_SECONDS:
                self._look_again(pod)
            else:
                self._discard(pod)
        return None

    def _require_ours(self, pod: Document) -> None:
        if labels_of(pod).get(INSTANCE_LABEL) != self._cluster.instance_id:
            raise LaunchError(
                "launch-refused", "A Pod of another program has the workspace's name."
            )
        if _count(pod) > self._request.attempt_count:
            raise _superseded()

    def _is_adoptable(self, pod: Document) -> bool:
        image = self._options.image(self._request.image)
        same = any(
            each["name"] == WORKSPACE and each["image"] == image
            for each in pod["spec"]["containers"]
        )
        if not same or DISCARDED in annotations_of(pod) or not pod_state.is_running(pod):
            return False
        with contextlib.suppress(LaunchError):
            return inside.is_given(self._cluster, self._name)
        return False

    def _is_under_way(self, pod: Document) -> bool:
        """Whether the launch that made it has our count: it is about to go on, or it has died."""
        return _count(pod) == self._request.attempt_count and pod_state.ended(pod) is None

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

    def _discard(self, pod: Document, *, in_order: bool = False) -> bool:
        """Remove a Pod; False when a launch of our rank or above has it, True when it goes."""
        if self._request.before_discard is not None and pod_state.is_running(pod):
            self._request.before_discard()
        while True:
            current = self._cluster.get(PODS, self._name)
            if current is None or _uid(current) != _uid(pod):
                return True
            adopted = _marks(current) != _marks(pod)
            if adopted and annotations_of(current).get(TOKEN) != self._token:
                return False
            if pod_state.is_terminating(current):
                return True
            if (marked := self._annotate(current, {DISCARDED: self._token})) is not None:
                break
        self._collect(marked, in_order=in_order)
        remove_pod(self._cluster, marked)
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

    def _clean_up(self, pod: Document, *, in_order: bool) -> None:
        """Discard after a failure without hiding it: what stays behind is found by its labels."""
        try:
            # Its network policy stays until the Pod is gone; ``sweep_networks`` removes it then.
            self._discard(pod, in_order=in_order)
        except LaunchError as error:
            logger.warning("pod_left_behind", pod=self._name, reason=error.message)

    # ------------------------------------------------------------------------------- creating

    def _create(self) -> Document | None:
        """Return a Pod of our own that has its configuration; None when another has the name."""
        self._proceed()
        self._doing = "its Pod was being created"
        if self._request.volumes:
            self._wait_for_others()
            volume_claims.prepare(self._cluster, self._request, self._options)
            # From here on another launch finds that the claims are ours; it may have been quicker.
            self._wait_for_others()
        ensure_policy(self._cluster, self._request)
        try:
            pod = self._cluster.create(PODS, pod_for(self._request, self._options, self._token))
        except Conflict:
            return None
        except LaunchError:
            if self._cluster.get(PODS, self._name) is None:
                remove_policy(self._cluster, self._name)
            raise
        try:
            if self._request.volumes and not volume_claims.holds(self._cluster, self._request):
                raise _superseded()
            pod = self._started(pod)
            if not inside.give_configuration(self._cluster, self._name, self._request.boot):
                raise _superseded()
        except BaseException as error:
            self._clean_up(pod, in_order=False)
            if isinstance(error, LaunchError) and error.code == "runtime-gone":
                raise self._displaced(pod) from error
            raise
        return pod

    def _wait_for_others(self) -> None:
        """Wait until no other Pod of the workspace is there; the claims are ours by now."""
        while others := volume_claims.other_pods(self._cluster, self._request):
            self._doing = "an earlier Pod of the workspace was being removed"
            for pod in others:
                lost = pod_state.final_reason(pod)
                if lost is not None and lost.code == "node-lost":
                    raise volume_claims.in_use(others)
            if self._time_left() <= 1:
                raise volume_claims.in_use(others)
            self._proceed()
            self._look_again(others[0])

    def _started(self, pod: Document) -> Document:
        """Wait until the workspace's container runs; raises why it does not."""
        began = time.monotonic()
        troubled_since: float | None = None
        error: LaunchError | None = None
        while not pod_state.is_running(pod):
            self._doing = "its Pod was being started"
            if (gone := self._ended_early(pod)) is not None:
                raise gone
            failure = pod_state.start_failure(pod)
            if failure is None:
                troubled_since = error = None
            else:
                troubled_since = troubled_since or time.monotonic()
                error, sure = _clearer(failure, error)
                if sure or time.monotonic() - troubled_since >= self._start_timeout:
                    raise error
                if self._time_left() <= 1:
                    raise error
            self._proceed()
            pod = self._look_again(pod)
        logger.info("pod_started", pod=self._name, seconds=round(time.monotonic() - began, 3))
        return pod

    # ----------------------------------------------------------------- waiting for the agent

    def _ready(self, pod: Document) -> LaunchedRuntime:
        """Wait until the agent says ready."""
        self._request.on_started()
        self._doing = boot.progress_of(None)
        status: boot.BootStatus | None = None
        heard = time.monotonic()
        while status is None or status.phase != "ready":
            self._proceed(status)
            answer = self._ask()
            status = answer or status
            pod = self._current(pod)
            if status is not None and status.phase in ("failed", "stopped"):
                raise boot.failure_of(status, out_of_memory=self._out_of_memory(pod))
            if (early := self._ended_early(pod)) is not None:
                raise early
            if answer is not None:
                heard = time.monotonic()
                if answer.phase == credentials.PHASE:
                    self._deliver()
            elif time.monotonic() - heard > self._silence:
                raise LaunchError(
                    "agent-silent",
                    f"The agent in the workspace gave no answer for {self._silence:g} s.",
                )
            else:
                self._cancelled.wait(TICK_SECONDS)
        return LaunchedRuntime(
            adapter="kubernetes",
            resource_id=_uid(pod),
            reference=self._name,
            endpoint=f"kubernetes-exec://{self._cluster.namespace}/{self._name}",
            engine_id=self._cluster.uid(),
        )

    def _ask(self) -> boot.BootStatus | None:
        seconds = min(self._time_left(), STATUS_WAIT_SECONDS + EXEC_GRACE_SECONDS)
        arguments = ("status", "--wait", str(STATUS_WAIT_SECONDS))
        with contextlib.suppress(LaunchError):
            answer = inside.call_agent(
                self._cluster,
                self._name,
                arguments,
                timeout=max(1.0, seconds),
                cancelled=self._cancelled.is_set,
            )
            return None if answer is None else boot.parse_status(answer.stdout)
        return None

    def _deliver(self) -> None:
        """Give the Pod any credentials."""
        make_document: Callable[[], bytes] | None = self._request.credentials
        if make_document is None:
            return
        self._doing = "its credentials were being delivered"
        seconds = min(self._time_left(), credentials.SECONDS)
        try:
            answer = inside.call_agent(
                self._cluster,
                self._name,
                (*credentials.DELIVER, "--wait", "1"),
                stdin=make_document(),
                timeout=max(1.0, seconds),
                cancelled=self._cancelled.is_set,
            )
        except LaunchError as error:
            if error.code in ("runtime-gone", "runtime-not-running"):
                return
            raise
        if answer is not None:
            credentials.require_taken(answer)
            for note in credentials.notes(answer):
                logger.warning("credentials_delivered_with_limitation", note=note)
        elif not self._cancelled.is_set() and seconds >= credentials.SECONDS:
            raise LaunchError(
                "agent-silent", f"The agent did not accept the credentials within {seconds:g} s."
            )

    def _ended_early(self, pod: Document) -> LaunchError | None:
        """Return why the Pod will not be ready, when it has ended or goes away."""
        terminating = pod_state.is_terminating(pod)
        found = pod_state.ended(pod)
        if not (terminating or found or pod.get("status", {}).get("phase") == "Failed"):
            return pod_state.seeding_failure(pod)
        events = self._cluster.events_of(_uid(pod)) if terminating else ()
        if (final := pod_state.final_reason(pod, events)) is not None:
            return final
        if terminating or found is None:
            return self._displaced(pod)
        if (failure := pod_state.start_failure(pod)) is not None:
            return failure[0]
        return self._exited(pod, found)

    def _exited(self, pod: Document, found: pod_state.Ended) -> LaunchError:
        status = None
        with contextlib.suppress(LaunchError):
            read = inside.reader(self._cluster, self._name, running=lambda: False)
            with read(boot.STATUS_FILE) as chunks:
                data = boot.read_archived_file(chunks) if chunks is not None else None
            status = boot.parse_status(data) if data is not None else None
        if status is not None and status.phase in ("failed", "stopped"):
            return boot.failure_of(status, out_of_memory=self._out_of_memory(pod))
        error = boot.exited_without_status(
            found.exit_code,
            self._cluster.logs(self._name, WORKSPACE, 50),
            secrets=boot.secrets_of(self._request.boot),
            out_of_memory=self._out_of_memory(pod),
        )
        return LaunchError("runtime-out-of-memory", error.message) if found.out_of_memory else error

    def _out_of_memory(self, pod: Document) -> str:
        """Say so if the workspace ran out of memory, which is known once its container ended."""
        until = time.monotonic() + 5.0
        while (found := pod_state.ended(pod)) is None:
            if time.monotonic() > until or pod_state.is_terminating(pod):
                return ""
            pod = self._look_again(pod)
        if not found.out_of_memory:
            return ""
        return f" The workspace ran out of its {self._request.memory_mb} MB of memory."

    def _displaced(self, pod: Document) -> LaunchError:
        """Return the error for a Pod of ours that went away before it was ready."""
        found = self._cluster.get(PODS, self._name)
        if found is not None and (_uid(found) != _uid(pod) or DISCARDED in annotations_of(found)):
            return _superseded()
        return LaunchError(
            "container-exited", "The Pod was removed while the workspace was starting."
        )

    # --------------------------------------------------------------------------------- looking

    def _current(self, pod: Document) -> Document:
        found = self._cluster.get(PODS, self._name)
        if found is None or _uid(found) != _uid(pod):
            events = self._cluster.events_of(_uid(pod))
            raise pod_state.final_reason(pod, events) or self._displaced(pod)
        return found

    def _look_again(self, pod: Document) -> Document:
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
        self._look_again(pod)

    def _time_left(self) -> float:
        return self._deadline - time.monotonic()


def _clearer(
    failure: tuple[LaunchError, bool], before: LaunchError | None
) -> tuple[LaunchError, bool]:
    """Return a failure, with the earlier message where the new one only says that it waits."""
    error, sure = failure
    if before is not None and before.code == error.code and pod_state.BACK_OFF in error.message:
        return before, sure
    return failure


def _as_gone(pod: Document) -> Document:
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": _soon()}}


def _soon() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _uid(pod: Document) -> str:
    return str(pod["metadata"]["uid"])


def _count(pod: Document) -> int:
    try:
        return int(annotations_of(pod).get(ATTEMPT_COUNT, "0"))
    except ValueError:
        return 0


def _marks(pod: Document) -> tuple[str | None, int]:
    return annotations_of(pod).get(TOKEN), _count(pod)


def _superseded() -> LaunchError:
    return LaunchError("launch-superseded", "A newer launch of the workspace has taken over.")
