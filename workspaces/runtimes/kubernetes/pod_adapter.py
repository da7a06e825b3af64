"""``KubernetesAdapter``: the runtime adapter for one namespace of a Kubernetes cluster."""

from __future__ import annotations

import builtins
import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import (
    AgentAnswer,
    AgentChannel,
    Collect,
    FileReader,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    RenewedCredential,
)
from workspaces.runtimes.kubernetes import inside, pod_state, volume_claims
from workspaces.runtimes.kubernetes.agent_calls import AgentCall, AgentExecs
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    PODS,
    POLICIES,
    RUN_LABEL,
    WORKSPACE_LABEL,
    Cluster,
    Document,
    annotations_of,
    labels_of,
)
from workspaces.runtimes.kubernetes.cluster_access import Access
from workspaces.runtimes.kubernetes.network_policies import NetworkProof, sweep_probes
from workspaces.runtimes.kubernetes.pod_launch import Launch
from workspaces.runtimes.kubernetes.pod_removal import end_in_order, remove_pod, remove_policy
from workspaces.runtimes.kubernetes.pods import ATTEMPT_COUNT, PodOptions, pod_name

GONE_SECONDS = 20.0
"""How long ``remove`` waits for a Pod's node to say that it is gone."""
COLLECT_SECONDS = 5.0
MOST_KNOWN = 4096


class KubernetesAdapter:
    """Launches, observes and removes the workspaces of one installation in one namespace.

    ``kubeconfig`` is a file, or empty inside the cluster. ``guarded``: no Pod is launched, also
    none with a network, unless the cluster was seen to enforce network policies. ``api_timeout``
    limits each call, in seconds, ``agent_silence`` how long a live Pod may leave every question
    unanswered, and ``start_timeout`` how long a Pod may be without a node, a volume or an image
    before that is a failure. Safe to use from several threads.
    """

    name = "kubernetes"

    def __init__(
        self,
        instance_id: str,
        namespace: str,
        *,
        kubeconfig: str = "",
        options: PodOptions | None = None,
        guarded: bool = True,
        api_timeout: float = 60.0,
        agent_silence: float = 120.0,
        start_timeout: float = 60.0,
    ) -> None:
        self.instance_id = instance_id
        self.options = options or PodOptions()
        self.cluster = Cluster(Access(kubeconfig), namespace, instance_id, timeout=api_timeout)
        self.proof = NetworkProof(
            self.cluster,
            self.options.probe_image,
            self.options.pull_secret,
            self.options.placement,
        )
        self.execs = AgentExecs(self.cluster)
        self._guarded = guarded
        self._timeout = api_timeout
        self._silence = agent_silence
        self._start_timeout = start_timeout
        self._ours: set[UUID] = set()

    def check(self) -> None:
        """Raise ``adapter-unavailable`` unless the API server answers and lets us in."""
        self.cluster.uid()

    def engine_id(self) -> str:
        """Return the id of the namespace."""
        return self.cluster.uid()

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Return the run's ready Pod; see ``RuntimeAdapter.launch`` and ``pod_launch``."""
        if request.instance_id != self.instance_id:
            raise ValueError("the request belongs to another installation")
        return Launch(
            self.cluster,
            self.execs,
            request,
            cancelled,
            options=self.options,
            proof=self.proof,
            guarded=self._guarded,
            silence=self._silence,
            start_timeout=self._start_timeout,
        ).run()

    def observe(self, run_id: UUID) -> ObservedRuntime | None:
        """Return the run's Pod as the API server knows it, or None."""
        pod = self._pod(run_id)
        return None if pod is None else self._observed(pod)

    def list(self, workspace_id: UUID | None = None) -> list[ObservedRuntime]:
        """Return the Pod of every run, of one workspace or of all, ended ones included."""
        labels = {INSTANCE_LABEL: self.instance_id}
        if workspace_id is not None:
            labels[WORKSPACE_LABEL] = str(workspace_id)
        pods = self.cluster.list(PODS, labels)
        return [self._observed(pod) for pod in pods if _is_of_a_run(pod)]

    def stop(self, run_id: UUID, *, seconds: float) -> bool:
        """Have the run's container end in order; its keeper goes on."""
        pod = self._pod(run_id)
        if pod is None:
            return False
        end_in_order(self.cluster, pod, seconds)
        return True

    def remove_containers(self, run_id: UUID) -> bool:
        """Have the run's Pod removed; its node needs some seconds for that."""
        self.execs.forget(pod_name(run_id))
        pod = self._pod(run_id)
        return pod is not None and remove_pod(self.cluster, pod)

    def remove(self, run_id: UUID, *, collect: Collect | None = None) -> bool:
        """Remove the run's Pod and its network policy; True if there were any.

        Where the Pod's node does not say in time that it is gone, the policy is left to
        ``sweep_networks``: what may still run must not reach more than it was allowed.
        """
        self.execs.forget(pod_name(run_id))
        pod = self._pod(run_id)
        if pod is not None:
            if collect is not None:
                end_in_order(self.cluster, pod, COLLECT_SECONDS)
                with contextlib.suppress(LaunchError):
                    collect(self._reader(run_id, pod))
            remove_pod(self.cluster, pod)
            if not self._is_gone(run_id):
                return True
        return remove_policy(self.cluster, pod_name(run_id)) or pod is not None

    def remove_volumes(self, workspace_id: UUID) -> int:
        """Remove the workspace's claims; return how many there were."""
        return volume_claims.remove_all(self.cluster, workspace_id)

    def workspaces_with_volumes(self) -> set[UUID]:
        """Return the workspaces that have claims of this installation."""
        return volume_claims.workspaces_with_claims(self.cluster)

    def sweep_networks(self, keep_run_ids: Collection[UUID]) -> int:
        """Remove the network policies of Pods that are gone, and what dead probes have left."""
        sweep_probes(self.cluster)
        kept = {str(run_id) for run_id in keep_run_ids}
        labels = {INSTANCE_LABEL: self.instance_id}
        there = {labels_of(pod).get(RUN_LABEL) for pod in self.cluster.list(PODS, labels)}
        return sum(
            remove_policy(self.cluster, policy["metadata"]["name"])
            for policy in self.cluster.list(POLICIES, labels)
            if (run_id := labels_of(policy).get(RUN_LABEL)) and run_id not in kept | there
        )

    def call_agent(
        self, run_id: UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> AgentAnswer:
        """Run the agent in the run's Pod, as root, and wait for its answer."""
        deadline = time.monotonic() + timeout
        with contextlib.closing(
            self._open(run_id, arguments, min(timeout, self._timeout))
        ) as channel:
            try:
                answer = channel.answer(stdin, max(0.0, deadline - time.monotonic()))
            except LaunchError as error:
                raise self._why_lost(run_id, error) from error
        if answer is None:
            raise LaunchError(
                "agent-silent", f"The agent in the workspace gave no answer for {timeout:g} s."
            )
        return answer

    def open_agent(self, run_id: UUID, arguments: Sequence[str]) -> AgentChannel:
        """Start the agent in the run's Pod, as root, and stay connected to it."""
        return self._open(run_id, arguments, self._timeout)

    def waits_for_credentials(self, run_id: UUID) -> bool:
        """Whether the boot in the run's Pod waits for its credentials."""
        answer = self.call_agent(run_id, ("status",), timeout=credentials.SECONDS)
        status = boot.parse_status(answer.stdout)
        return status is not None and status.phase == credentials.PHASE

    def deliver_credentials(self, run_id: UUID, document: bytes) -> None:
        """Give the run's Pod its credentials, on the standard input of an exec."""
        credentials.require_taken(
            self.call_agent(
                run_id, credentials.DELIVER, stdin=document, timeout=credentials.SECONDS
            )
        )

    def collect_credentials(self, run_id: UUID) -> builtins.list[RenewedCredential]:
        """Return what the run's Pod holds of accounts whose secrets renew themselves."""
        return credentials.renewed(
            self.call_agent(run_id, credentials.COLLECT, timeout=credentials.SECONDS)
        )

    def withdraw_credentials(self, run_id: UUID, account_ids: Collection[UUID]) -> None:
        """Remove accounts from the run's Pod."""
        document = credentials.withdrawal(account_ids)
        credentials.require_taken(
            self.call_agent(
                run_id, credentials.WITHDRAW, stdin=document, timeout=credentials.SECONDS
            )
        )

    @contextlib.contextmanager
    def read_files(self, run_id: UUID, path: str) -> Iterator[Iterator[bytes] | None]:
        """Open a tar stream of ``path`` in the run's Pod.

        Of one whose workspace has ended only the agent's own folder can be read.
        """
        pod = self._pod(run_id)
        if pod is None:
            yield None
            return
        with self._reader(run_id, pod)(path) as chunks:
            yield chunks

    def _reader(self, run_id: UUID, pod: Document) -> FileReader:
        running = pod_state.is_running(pod)
        return inside.reader(self.cluster, pod_name(run_id), running=lambda: running)

    def _open(self, run_id: UUID, arguments: Sequence[str], timeout: float) -> AgentCall:
        if run_id not in self._ours:
            # By its name alone it could be another installation's.
            if self._pod(run_id) is None:
                raise LaunchError("runtime-gone", "The workspace has no Pod.")
            if len(self._ours) >= MOST_KNOWN:
                self._ours.clear()
            self._ours.add(run_id)
        return self.execs.open(pod_name(run_id), arguments, timeout=timeout)

    def _why_lost(self, run_id: UUID, error: LaunchError) -> LaunchError:
        """Return what it means that a call was cut: its Pod has ended, or only the connection."""
        if error.code != "runtime-not-running":
            return error
        pod = self._pod(run_id)
        if pod is None:
            return LaunchError("runtime-gone", "The workspace has no Pod.")
        if not pod_state.is_running(pod):
            return error
        return LaunchError(
            "adapter-unavailable", "The connection to the workspace's agent was lost."
        )

    def _pod(self, run_id: UUID) -> Document | None:
        pod = self.cluster.get(PODS, pod_name(run_id))
        ours = pod is not None and labels_of(pod).get(INSTANCE_LABEL) == self.instance_id
        return pod if ours else None

    def _is_gone(self, run_id: UUID) -> bool:
        until = time.monotonic() + GONE_SECONDS
        while (pod := self._pod(run_id)) is not None:
            if time.monotonic() >= until:
                return False
            version = pod["metadata"]["resourceVersion"]
            next(self.cluster.watch(PODS, pod_name(run_id), version, seconds=1), None)
        return True

    def _observed(self, pod: Document) -> ObservedRuntime:
        metadata, labels = pod["metadata"], labels_of(pod)
        found = pod_state.ended(pod)
        terminating = pod_state.is_terminating(pod)
        events = self.cluster.events_of(metadata["uid"]) if terminating else ()
        final = pod_state.final_reason(pod, events)
        return ObservedRuntime(
            run_id=UUID(labels[RUN_LABEL]),
            job_id=UUID(labels["svc.job"]),
            attempt_count=int(annotations_of(pod).get(ATTEMPT_COUNT, "0")),
            resource_id=str(metadata["uid"]),
            reference=str(metadata["name"]),
            running=final is None and pod_state.is_running(pod),
            exit_code=found.exit_code if found else None,
            oom_killed=bool(found and found.out_of_memory),
            created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
            ended_code=final.code if final else "",
            ended_message=final.message if final else "",
        )


def _is_of_a_run(pod: Document) -> bool:
    """Whether a Pod is its run's; a copy that somebody made to look at has only its labels."""
    labels = labels_of(pod)
    return "svc.job" in labels and pod["metadata"]["name"] == f"svc-{labels.get(RUN_LABEL)}"
