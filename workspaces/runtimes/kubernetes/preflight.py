"""What has to hold in a cluster before the first workspace is started there, tried one by one.

One Pod is made as a workspace's would be, with a volume, and removed again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

from workspaces.runtimes.base import LaunchError, LaunchRequest, Volume
from workspaces.runtimes.kubernetes import pod_state, volume_claims
from workspaces.runtimes.kubernetes.cluster import CLAIMS, PODS, POLICIES, Conflict
from workspaces.runtimes.kubernetes.network_policies import ensure_policy
from workspaces.runtimes.kubernetes.pod_adapter import KubernetesAdapter
from workspaces.runtimes.kubernetes.pod_channel import ExecChannel
from workspaces.runtimes.kubernetes.pod_removal import remove_pod
from workspaces.runtimes.kubernetes.pods import WORKSPACE, claim_name, pod_for, pod_name

RIGHTS = (
    *((verb, PODS, "") for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *((verb, PODS, "exec") for verb in ("create", "get")),
    ("get", PODS, "log"),
    *((verb, CLAIMS, "") for verb in ("create", "get", "list", "patch", "delete")),
    *((verb, POLICIES, "") for verb in ("create", "get", "list", "delete")),
    ("list", "events", ""),
    ("get", "namespaces", ""),
)
"""The verbs of the Role in ``deploy/kubernetes/workspaces.yaml``: verb, resource, subresource."""
MEMORY_MB = 128
START_SECONDS = 120.0
EXEC_SECONDS = 30.0
CLEAN_UP_SECONDS = 60.0
HOME = Volume("home", "/home/workspace")
APPLY = "Apply deploy/kubernetes/workspaces.yaml."
POD_ADVICE = (
    "The text says what the cluster does not do. For the image: KUBERNETES_PULL_REGISTRY is the "
    "registry's name for the nodes, which have to trust its certificate; KUBERNETES_PULL_SECRET "
    "names a Secret of the namespace. For the volume: KUBERNETES_STORAGE_CLASS. For the node: "
    "KUBERNETES_NODE_SELECTOR and KUBERNETES_TOLERATIONS."
)
EXEC_ADVICE = "Let WebSockets through to the API server, and allow pods/exec."
_LIMITS = (
    "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes; "
    "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has seen, and what to do where it is not good."""

    name: str
    ok: bool
    seen: str
    advice: str = ""


class Preflight:
    """The checks of one cluster; ``image`` is one of our images, as it was pushed."""

    def __init__(self, adapter: KubernetesAdapter, image: str) -> None:
        self._adapter = adapter
        self._cluster = adapter.cluster
        self._image = image

    def run(self) -> Iterator[Finding]:
        """Yield what each check has seen; those that make no sense after a failure are left out."""
        server = self._tried("API server", self._server, "Correct KUBERNETES_KUBECONFIG.")
        yield server
        if not server.ok:
            return
        rights = self._tried("permissions", self._rights, APPLY)
        yield rights
        if not rights.ok:
            return
        if not self._image:
            yield Finding(
                "image",
                False,
                "Nothing else can be tried without an image.",
                "Build a workspace once, or name one of its images with --image.",
            )
            return
        yield from self._with_a_pod()
        yield self._tried(
            "network policies",
            self._policies,
            "Install a network plugin that enforces them, and name an image in "
            "KUBERNETES_PROBE_IMAGE; until then `outbound: false` is refused, and "
            "SVC_NETWORK_GUARD decides about the rest.",
        )

    # -------------------------------------------------------------------------------- the checks

    def _server(self) -> str:
        version = self._cluster.version()
        self._adapter.check()
        return f"{version} answers; the namespace {self._cluster.namespace} is there."

    def _rights(self) -> str:
        missing = [
            f"{verb} {resource}{'/' if sub else ''}{sub}"
            for verb, resource, sub in RIGHTS
            if not self._cluster.may(verb, resource, sub)
        ]
        if missing:
            raise LaunchError("adapter-unavailable", f"Not allowed: {', '.join(missing)}.")
        return f"All {len(RIGHTS)} verbs are allowed."

    def _with_a_pod(self) -> Iterator[Finding]:
        request = self._request()
        try:
            began = time.monotonic()
            started = self._tried(
                "Pod, volume and pull by digest",
                lambda: self._started(request, began),
                POD_ADVICE,
            )
            yield started
            if started.ok:
                yield self._tried("exec", lambda: self._exec(request), EXEC_ADVICE)
                yield self._tried(
                    "limits", lambda: self._limits(request), "Look at the node's cgroups."
                )
        finally:
            self._clean_up(request)

    def _started(self, request: LaunchRequest, began: float) -> str:
        volume_claims.prepare(self._cluster, request, self._adapter.options)
        ensure_policy(self._cluster, request)
        name = pod_name(request.run_id)
        pod = self._cluster.create(PODS, pod_for(request, self._adapter.options, uuid4().hex))
        while not pod_state.is_running(pod):
            failure = pod_state.start_failure(pod)
            seconds = time.monotonic() - began
            if failure is not None and (failure[1] or seconds > START_SECONDS):
                raise failure[0]
            if seconds > START_SECONDS:
                raise LaunchError("launch-timed-out", f"The Pod did not run after {seconds:.0f} s.")
            version = pod["metadata"]["resourceVersion"]
            next(self._cluster.watch(PODS, name, version, seconds=1), None)
            pod = self._cluster.get(PODS, name) or pod
        claim = self._cluster.get(CLAIMS, claim_name(request.workspace_id, HOME.purpose)) or {}
        storage = claim.get("spec", {}).get("storageClassName") or "the default"
        node = pod["spec"].get("nodeName")
        return (
            f"It runs on {node} after {time.monotonic() - began:.1f} s; storage class: {storage}."
        )

    def _exec(self, request: LaunchRequest) -> str:
        with contextlib.closing(self._channel(request, ["cat"])) as channel:
            return f"A process was started over {channel.protocol}."

    def _limits(self, request: LaunchRequest) -> str:
        command = ["/bin/sh", "-c", _LIMITS]
        with contextlib.closing(self._channel(request, command)) as channel:
            answer = channel.answer(b"", EXEC_SECONDS)
        told = answer.stdout.decode(errors="replace").split() if answer else []
        memory, processes = [*told, "?", "?"][:2]
        if memory != str(MEMORY_MB << 20):
            raise LaunchError(
                "launch-refused", f"The memory limit is {memory} instead of {MEMORY_MB << 20}."
            )
        return (
            f"Memory is limited as asked; processes to {processes}, by the node's podPidsLimit: "
            "what a blueprint says about them has no effect."
        )

    def _policies(self) -> str:
        problem = self._adapter.proof.problem()
        if problem:
            raise LaunchError("network-not-guarded", problem)
        return "Enforced: a Pod that may reach nothing did not reach the API server, another did."

    # --------------------------------------------------------------------------------- details

    def _tried(self, name: str, check: Callable[[], str], advice: str) -> Finding:
        try:
            return Finding(name, True, check())
        except LaunchError as error:
            return Finding(name, False, error.message, advice)
        except Conflict as error:
            return Finding(name, False, str(error), advice)

    def _channel(self, request: LaunchRequest, command: list[str]) -> ExecChannel:
        return ExecChannel.open(
            self._cluster.access,
            self._cluster.namespace,
            pod_name(request.run_id),
            WORKSPACE,
            command,
            timeout=EXEC_SECONDS,
            framed=False,
        )

    def _request(self) -> LaunchRequest:
        return LaunchRequest(
            instance_id=self._adapter.instance_id,
            run_id=uuid4(),
            attempt_id=uuid4(),
            workspace_id=uuid4(),
            job_id=uuid4(),
            attempt_count=1,
            image=self._image,
            boot={},
            working_directory="/",
            outbound=False,
            memory_mb=MEMORY_MB,
            cpus=0.1,
            pids=64,
            sudo=False,
            restart=False,
            oci_runtime="runc",
            timeout=START_SECONDS,
            volumes=(HOME,),
        )

    def _clean_up(self, request: LaunchRequest) -> None:
        """Remove what was made; what stays behind is found by its labels, and removed later."""
        until = time.monotonic() + CLEAN_UP_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(LaunchError):
                if (pod := self._cluster.get(PODS, pod_name(request.run_id))) is not None:
                    remove_pod(self._cluster, pod, given=False)
                self._adapter.remove(request.run_id)
                self._adapter.remove_volumes(request.workspace_id)
                return
            time.sleep(1)
