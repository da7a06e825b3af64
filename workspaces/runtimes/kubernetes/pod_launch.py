"""One launch: from an image digest to a Pod whose agent says that the workspace is ready.

It makes one Pod named ``svc-<run id>``, its network policy, and the claims of a persistent
workspace. All carry the labels in ``pods``.

**Two launches of one run at once** end with one live Pod. The API server gives a name to one only,
and the annotation ``svc.attempt-count`` says who yields: a lower one raises ``launch-superseded``.
Whoever adopts a Pod, also one that has not begun, writes its own count and token there, whoever is
to remove one first writes that; both only into the very version that they have seen, so one of the
two fails and looks again.
A Pod is removed by its id: one that took the name meanwhile is not touched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

import structlog

from controlplane.errors import JobError
from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import LaunchedRuntime, LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import inside, pod_state, volume_claims
from workspaces.runtimes.kubernetes.agent_calls import AgentExecs
from workspaces.runtimes.kubernetes.cluster import PODS, Cluster, Conflict, Document
from workspaces.runtimes.kubernetes.network_policies import NetworkProof, ensure_policy
from workspaces.runtimes.kubernetes.pod_ownership import PodOwnership, superseded, uid_of
from workspaces.runtimes.kubernetes.pods import (
    WORKSPACE,
    PodOptions,
    pod_for,
    pod_name,
)

STATUS_WAIT_SECONDS = 2
EXEC_GRACE_SECONDS = 10.0
TICK_SECONDS = 0.2
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 1.0
REACHED_SECONDS = 5.0
ENDED_SECONDS = 15.0
"""How long a node may take to tell how a container ended whose agent has said that it failed."""
ROUNDS = 8

logger = structlog.get_logger(__name__)


class Launch:
    """The steps of one launch, with its deadline and the token it signs the Pod with."""

    def __init__(
        self,
        cluster: Cluster,
        execs: AgentExecs,
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
        self._execs = execs
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
        self._pods = PodOwnership(cluster, request, cancelled, options, self._token)
        self._doing = "the cluster was looked at"

    def run(self) -> LaunchedRuntime:
        """Create or adopt until one Pod is ready, in a bounded number of rounds."""
        self._proceed()
        self._require_network()
        # An earlier Pod may have had the name.
        self._execs.forget(self._name)
        for _ in range(ROUNDS):
            adopted = self._pods.adoptable(self._proceed)
            if adopted is None:
                pod = self._create()
            else:
                found, begun = adopted
                pod = found if begun else self._begin(found)
            if pod is None:
                continue
            try:
                return self._ready(pod)
            except BaseException as error:
                self._pods.clean_up(pod, in_order=isinstance(error, JobError))
                raise
        raise LaunchError("launch-refused", "Other launches of the workspace kept taking its name.")

    # ----------------------------------------------------------------- before there is a Pod

    def _require_network(self) -> None:
        if self._request.egress is not None:
            raise LaunchError(
                "egress-not-enforced",
                "Egress policies by host name are not enforced on Kubernetes: no egress proxy "
                "runs beside the Pods.",
            )
        if self._guarded or not self._request.outbound:
            self._doing = "the cluster's network policies were being probed"
            self._proof.require(self._proceed)
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

    # ------------------------------------------------------------------------------- creating

    def _create(self) -> Document | None:
        """Return a Pod of our own that has its configuration; None when another has the name."""
        self._proceed()
        self._doing = "its Pod was being created"
        if self._request.volumes:
            self._wait_for_others()
            volume_claims.prepare(self._cluster, self._request, self._options, self._proceed)
            # From here on another launch finds that the claims are ours; it may have been quicker.
            self._wait_for_others()
        ensure_policy(self._cluster, self._request)
        try:
            pod = self._cluster.create(PODS, pod_for(self._request, self._options, self._token))
        except Conflict:
            return None
        except LaunchError as error:
            self._pods.withdraw(error)
            raise
        return self._begin(pod, made=True)

    def _begin(self, pod: Document, *, made: bool = False) -> Document | None:
        """Have a Pod of ours begin; None when it has got another launch's configuration.

        ``made``: by this launch, so that nobody else has given it anything while it is ours.
        """
        given = not made
        try:
            if self._request.volumes and not volume_claims.holds(self._cluster, self._request):
                raise superseded()
            pod = self._started(pod)
            # A removal of an earlier Pod may have taken away what this one found.
            ensure_policy(self._cluster, self._request)
            self._require_kept_away()
            given = True
            if not inside.give_configuration(self._execs, self._name, self._configuration()):
                return None
        except BaseException as error:
            self._pods.clean_up(pod, in_order=False, given=given)
            if isinstance(error, LaunchError) and error.code == "runtime-gone":
                raise self._pods.displaced(pod) from error
            raise
        return pod

    def _configuration(self) -> Mapping[str, object]:
        """Return the agent's configuration. Nothing starts a Pod again: its record ends with it."""
        record = self._request.boot.get("record")
        if not isinstance(record, Mapping):
            return self._request.boot
        return {**self._request.boot, "record": {**record, "restart": False}}

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
            self._pods.look_again(others[0])

    def _started(self, pod: Document) -> Document:
        """Wait until the container of a Pod of ours runs and can be spoken to, or raise why not.

        Its node tells of a container up to a second after it runs, so it is tried before. Only what
        the API server knows the address of is a Pod that policies are enforced for.
        """
        began = time.monotonic()
        pause, reached = FIRST_PAUSE_SECONDS, False
        trouble = pod_state.Trouble(self._start_timeout)
        while True:
            self._doing = "its Pod was being started"
            runs = pod_state.is_running(self._pods.mine(pod))
            if not runs:
                if (gone := self._ended_early(pod)) is not None:
                    raise gone
                trouble.look(pod, time_left=self._time_left())
            self._proceed()
            tries = runs or pod_state.is_starting(pod)
            reached = reached or (tries and self._reached(sure=runs))
            if runs and reached:
                break
            if tries and not reached and (runs or pause < LAST_PAUSE_SECONDS):
                self._cancelled.wait(pause)
                pause = min(pause * 1.5, LAST_PAUSE_SECONDS)
                pod = self._current(pod)
            else:
                pod = self._pods.look_again(pod)
        logger.info("pod_started", pod=self._name, seconds=round(time.monotonic() - began, 3))
        return pod

    def _require_kept_away(self) -> None:
        """Wait until a Pod that may reach nothing is kept away: some clusters need a moment."""
        server = self._cluster.access.server()
        reach = {"reach": [server.host, server.port]}
        while not self._request.outbound:
            self._doing = "the cluster was still to enforce its network policy"
            self._proceed()
            seconds = min(inside.GIVE_SECONDS, max(1.0, self._time_left()))
            answer = self._execs.call(self._name, reach, timeout=seconds)
            if answer is not None and answer.exit_code:
                return
            self._cancelled.wait(TICK_SECONDS)

    def _reached(self, *, sure: bool) -> bool:
        """Have an exec in the Pod; False while there cannot be one. ``sure``: it runs."""
        seconds = inside.SIGNAL_SECONDS if sure else REACHED_SECONDS
        try:
            self._execs.reach(self._name, timeout=min(seconds, max(1.0, self._time_left())))
        except LaunchError as error:
            # Before it runs, its node has many words for that.
            if sure and error.code != "runtime-not-running":
                raise
            return False
        return True

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
            resource_id=uid_of(pod),
            reference=self._name,
            endpoint=f"kubernetes-exec://{self._cluster.namespace}/{self._name}",
            engine_id=self._cluster.uid(),
        )

    def _ask(self) -> boot.BootStatus | None:
        seconds = min(self._time_left(), STATUS_WAIT_SECONDS + EXEC_GRACE_SECONDS)
        arguments = ("status", "--wait", str(STATUS_WAIT_SECONDS))
        with contextlib.suppress(LaunchError):
            answer = self._execs.call(
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
            answer = self._execs.call(
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
        events = self._cluster.events_of(uid_of(pod)) if terminating else ()
        if (final := pod_state.final_reason(pod, events)) is not None:
            return final
        if terminating or found is None:
            return self._pods.displaced(pod)
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
        until = time.monotonic() + ENDED_SECONDS
        while (found := pod_state.ended(pod)) is None:
            if time.monotonic() > until or pod_state.is_terminating(pod):
                return ""
            pod = self._pods.look_again(pod)
        if not found.out_of_memory:
            return ""
        return f" The workspace ran out of its {self._request.memory_mb} MB of memory."

    # --------------------------------------------------------------------------------- looking

    def _current(self, pod: Document) -> Document:
        found = self._cluster.get(PODS, self._name)
        if found is None or uid_of(found) != uid_of(pod):
            events = self._cluster.events_of(uid_of(pod))
            raise pod_state.final_reason(pod, events) or self._pods.displaced(pod)
        return found

    def _time_left(self) -> float:
        return self._deadline - time.monotonic()
