"""The network policy of each run, and what is tried to know that such policies are enforced.

Whoever may reach nothing gets a policy without any rule; whoever may reach the outside reaches
public addresses and the cluster's name servers. A cluster accepts policies without enforcing them,
so nothing is believed that was not seen: two Pods try to connect to the API server, one that may
reach the ports of such servers and one that may reach nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import structlog

from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.kubernetes import pod_state
from workspaces.runtimes.kubernetes.cluster import (
    INSTANCE_LABEL,
    PODS,
    POLICIES,
    RUN_LABEL,
    Cluster,
    Conflict,
    Document,
)
from workspaces.runtimes.kubernetes.pod_placement import ANYWHERE, PodPlacement
from workspaces.runtimes.kubernetes.pods import WORKSPACE, labels_for, pod_name
from workspaces.runtimes.never_reached import NEVER_REACHED

PROBE_LABEL = "svc.probe"
VALID_SECONDS = 900.0
AGAIN_SECONDS = 60.0
PROBE_SECONDS = 180.0
"""The pull of the image included."""
TROUBLED_SECONDS = 60.0
"""How long a probe may be without a node or an image before that is the answer."""
RUNNING_SECONDS = 40.0
QUEUE_SECONDS = 0.5
API_PORTS = (443, 6443)
"""Where API servers listen, for those who are inside the cluster and behind its service."""
KEPT_AWAY_SECONDS = 6
REACHED_SECONDS = 20
NO_IMAGE = (
    "Whether the cluster enforces network policies is not known: KUBERNETES_PROBE_IMAGE names no "
    "image to try it with."
)
LEFT_BEHIND = timedelta(minutes=10)
_CONNECTED, _NOT_CONNECTED = 0, 7
_TRY = f"""
import os, socket, sys, time
began = reached = time.monotonic()
place = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
# A rule that allows it may come late, too.
while time.monotonic() - reached < (20 if sys.argv[1] == "allowed" else {KEPT_AWAY_SECONDS}):
    try:
        socket.create_connection(place, timeout=1).close()
        reached = time.monotonic()
        # A rule may come a moment after the Pod that it is for.
        if sys.argv[1] == "allowed" or reached - began > {REACHED_SECONDS}:
            sys.exit({_CONNECTED})
    except OSError:
        pass
    time.sleep(0.2)
sys.exit({_NOT_CONNECTED})
"""

logger = structlog.get_logger(__name__)


def policy_for(request: LaunchRequest) -> Document:
    """Return the policy of a run's Pod."""
    rules: list[Document] = []
    if request.outbound:
        public = {"cidr": "0.0.0.0/0", "except": list(map(str, NEVER_REACHED))}
        names = {
            "to": [
                {
                    "namespaceSelector": {},
                    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                }
            ],
            "ports": [{"protocol": each, "port": 53} for each in ("UDP", "TCP")],
        }
        rules = [{"to": [{"ipBlock": public}]}, names]
    return _policy(
        pod_name(request.run_id), labels_for(request), {RUN_LABEL: str(request.run_id)}, rules
    )


def ensure_policy(cluster: Cluster, request: LaunchRequest) -> None:
    """Have the run's policy; it is never changed, because all launches of a run want the same."""
    wanted = policy_for(request)
    try:
        cluster.create(POLICIES, wanted)
    except Conflict:
        found = cluster.get(POLICIES, wanted["metadata"]["name"])
        if found is None or found["metadata"].get("labels", {}).get(INSTANCE_LABEL) != (
            cluster.instance_id
        ):
            raise LaunchError(
                "launch-refused", "A network policy of another program has the workspace's name."
            ) from None


class NetworkProof:
    """Whether the cluster enforces policies, as seen by Pods that tried; asked from any thread.

    ``image`` has Python and is named by its digest, as the nodes pull it, with the account in the
    Secret ``pull_secret`` if there is one. It must not be an owner's: such a one could say what it
    likes. Without an image nothing counts as enforced. ``placement`` is that of workspaces.
    """

    def __init__(
        self,
        cluster: Cluster,
        image: str,
        pull_secret: str = "",
        placement: PodPlacement = ANYWHERE,
    ) -> None:
        self._cluster = cluster
        self._placement = placement
        self._image = image
        self._pull_secret = pull_secret
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._seen_at = 0.0

    def require(self, proceed: Callable[[], object] = lambda: None) -> None:
        """Return when policies are enforced; raises ``network-not-guarded`` with the reason.

        What was seen holds for a while; a refusal is looked at again sooner. ``proceed`` is called
        every now and then and raises when the caller does not want to wait any more.
        """
        problem = self.problem(proceed)
        if problem:
            raise LaunchError("network-not-guarded", problem)

    def problem(self, proceed: Callable[[], object] = lambda: None) -> str:
        """Return why policies are not known to be enforced; empty when they are."""
        if not self._image:
            return NO_IMAGE
        # Probes that find no result follow each other, one for everybody who asks.
        while not self._lock.acquire(timeout=QUEUE_SECONDS):
            proceed()
        try:
            age = time.monotonic() - self._seen_at
            if self._problem is None or age > (AGAIN_SECONDS if self._problem else VALID_SECONDS):
                self._problem = self._look(proceed)
                self._seen_at = time.monotonic()
                logger.info("network_policy_probed", enforced=not self._problem)
            return self._problem
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Have the next question looked into anew."""
        with self._lock:
            self._problem = None

    def _look(self, proceed: Callable[[], object]) -> str:
        token = uuid4().hex[:8]
        labels = {INSTANCE_LABEL: self._cluster.instance_id, PROBE_LABEL: token}
        name = f"svc-probe-{token}"
        # Also what may connect reaches no more than is needed.
        ports = sorted({*API_PORTS, self._cluster.access.server().port})
        to_servers: Document = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
        made: list[tuple[str, Document]] = []
        try:
            for side, rules in (("denied", []), ("allowed", [to_servers])):
                chosen = labels | {"svc.probe-side": side}
                policy = _policy(f"{name}-{side}", labels, chosen, rules)
                made.append((POLICIES, self._cluster.create(POLICIES, policy)))
            for side in ("denied", "allowed"):
                pod = _probe(f"{name}-{side}", labels | {"svc.probe-side": side}, self._image, side)
                self._placement.apply(pod["spec"])
                if self._pull_secret:
                    pod["spec"]["imagePullSecrets"] = [{"name": self._pull_secret}]
                made.append((PODS, self._cluster.create(PODS, pod)))
            sides = ("allowed", "denied")
            codes = {side: self._wait(f"{name}-{side}", proceed) for side in sides}
        finally:
            for kind, document in made:
                self._remove(kind, document)
        if codes["allowed"] != _CONNECTED:
            return (
                "The probe of network policies says nothing: the Pod that may reach the API server "
                "did not."
            )
        if codes["denied"] == _CONNECTED:
            return (
                "The cluster accepts network policies and does not enforce them: a Pod that may "
                "reach nothing reached the API server. Install a network plugin that does."
            )
        if codes["denied"] != _NOT_CONNECTED:
            return "The probe of network policies ended without a result."
        return ""

    def _wait(self, name: str, proceed: Callable[[], object]) -> int:
        began = well_at = time.monotonic()
        running_at: float | None = None
        while time.monotonic() - began < PROBE_SECONDS:
            proceed()
            pod = self._cluster.get(PODS, name)
            if pod is None:
                break
            found = pod_state.ended(pod)
            if found is not None:
                return found.exit_code
            if pod_state.is_running(pod):
                running_at = running_at or time.monotonic()
                if time.monotonic() - running_at > RUNNING_SECONDS:
                    break
            failure = pod_state.start_failure(pod)
            if failure is None:
                well_at = time.monotonic()
            elif failure[1] or time.monotonic() - well_at > TROUBLED_SECONDS:
                raise failure[0]
            version = pod["metadata"]["resourceVersion"]
            next(self._cluster.watch(PODS, name, version, seconds=2), None)
        raise LaunchError("network-not-guarded", "The probe of network policies did not end.")

    def _remove(self, kind: str, document: Document) -> None:
        metadata = document["metadata"]
        grace = 0 if kind == PODS else None
        try:
            self._cluster.delete(kind, metadata["name"], uid=metadata["uid"], grace=grace)
        except (LaunchError, Conflict) as error:
            logger.warning("probe_left_behind", name=metadata["name"], reason=str(error))


def sweep_probes(cluster: Cluster) -> None:
    """Remove what the probes of processes that died have left."""
    for kind in (PODS, POLICIES):
        for document in cluster.list(kind, {INSTANCE_LABEL: cluster.instance_id}):
            metadata = document["metadata"]
            made = datetime.fromisoformat(metadata["creationTimestamp"])
            if PROBE_LABEL in metadata["labels"] and datetime.now(UTC) - made > LEFT_BEHIND:
                with contextlib.suppress(Conflict):
                    cluster.delete(kind, metadata["name"], uid=metadata["uid"])


def _policy(
    name: str, labels: dict[str, str], chosen: dict[str, str], rules: list[Document]
) -> Document:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": {"matchLabels": chosen},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": rules,
        },
    }


def _probe(name: str, labels: dict[str, str], image: str, side: str) -> Document:
    amounts = {"memory": "48Mi", "cpu": "50m"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": int(PROBE_SECONDS),
            "containers": [
                {
                    "name": WORKSPACE,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/usr/bin/python3", "-I", "-S", "-c", _TRY, side],
                    "resources": {"requests": amounts, "limits": amounts | {"cpu": "1"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }
