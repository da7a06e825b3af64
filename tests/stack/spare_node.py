"""A second node of our own cluster, for the Pods that ask for it: it can be cut off and killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.stack.cluster import STATE, starting, weigh_pods
from tests.stack.worker_process import eventually
from workspaces.runtimes.kubernetes.cluster import PODS, Cluster, Conflict

NAME = "n2"
LABEL = "svc.test/spare"
SELECTOR = f"{LABEL}=yes"
TAINT = f"{SELECTOR}:NoSchedule"
_NETWORK = f"k8skit-{NAME}"


@dataclass(frozen=True)
class SpareNode:
    """The node's machine; only Pods that select and tolerate ``SELECTOR`` come to it."""

    admin: Cluster

    def join(self) -> None:
        """Have the machine run; a node that was there before has what it had then."""
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        environment["KUBELET_EXTRA"] = f"--register-with-taints={TAINT} --node-labels={SELECTOR}"
        with (STATE / "up.log").open("ab") as log, starting():
            up = [str(STATE / "up.sh"), NAME]
            subprocess.run(up, check=True, env=environment, stdout=log, stderr=log)
            weigh_pods()
        eventually(self.answers, what="the spare node takes Pods")

    def answers(self) -> bool:
        """Whether the cluster hears it, and it has no taint but ours."""
        node = self.admin._call("GET", f"/api/v1/nodes/{NAME}", none_for=(404,)) or {}
        conditions = node.get("status", {}).get("conditions") or ()
        ready = [each["status"] for each in conditions if each["type"] == "Ready"] == ["True"]
        taints = [each["key"] for each in node.get("spec", {}).get("taints") or ()]
        return ready and taints == [LABEL]

    def cut_off(self) -> None:
        """Have nothing come from it or to it any more; what runs there goes on."""
        self._link("down")

    def mend(self) -> None:
        """Connect it again."""
        self._link("up")

    def kill(self) -> None:
        """Kill all that runs there at once, as when it loses power."""
        subprocess.run([str(STATE / "node-stop.sh"), NAME], check=True)

    def leave(self) -> None:
        """Take it out of the cluster, with all that is there."""
        if (STATE / "state" / "pid" / f"node-{NAME}").exists():
            self.kill()
        self._forget()
        subprocess.run(["ip", "netns", "del", _NETWORK], check=False, capture_output=True)
        for place in Path("/sys/fs/cgroup").glob(f"*/{_NETWORK}"):
            for group, _, _ in os.walk(place, topdown=False):
                with contextlib.suppress(OSError):
                    Path(group).rmdir()
        shutil.rmtree(STATE / "state" / NAME, ignore_errors=True)

    def _forget(self) -> None:
        """Have the API server know neither it nor a Pod on it."""
        for pod in self.admin.list(PODS, {}, fields=f"spec.nodeName={NAME}"):
            with contextlib.suppress(Conflict):
                metadata = pod["metadata"]
                self.admin.delete(PODS, metadata["name"], uid=metadata["uid"], grace=0)
        self.admin._call("DELETE", f"/api/v1/nodes/{NAME}", {}, none_for=(404,))

    def _link(self, state: str) -> None:
        bridge = ["ip", "-n", "k8skit-br", "link", "set", f"v{NAME}", state]
        subprocess.run(bridge, check=True)


@contextlib.contextmanager
def spare_node(admin: Cluster) -> Iterator[SpareNode]:
    """Have the node for the block; afterwards nothing of it is left."""
    node = SpareNode(admin)
    # What a process that was killed has left: a node has the taints that it was registered with.
    node._forget()
    try:
        node.join()
        yield node
    finally:
        node.leave()
