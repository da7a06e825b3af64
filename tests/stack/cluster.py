"""A Kubernetes cluster for tests: the one that ``KUBECONFIG`` names, or one of our own.

Ours is started from a kit that lies beside the checkout (``../shared/cluster``, or where
``SVC_CLUSTER_KIT`` says) and needs root, about a minute the first time and half a minute after it.
Nodes reach the tests' registry through a forwarder on the kit's bridge; of another cluster
``SVC_TEST_CLUSTER_REGISTRY`` says under which name its nodes reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import yaml

from tests.registries.account import PASSWORD, USERNAME
from tests.stack.policy_enforcer import PolicyEnforcer
from tests.stack.worker_process import eventually
from workspaces.runtimes.kubernetes.cluster import Cluster
from workspaces.runtimes.kubernetes.cluster_access import Access
from workspaces.runtimes.kubernetes.network_policies import NetworkProof

CHECKOUT = Path(__file__).resolve().parents[2]
KIT = Path(os.environ.get("SVC_CLUSTER_KIT", CHECKOUT.parent / "shared" / "cluster"))
STATE = Path(os.environ.get("SVC_CLUSTER_STATE", "/var/tmp/svc-cluster"))
MANIFEST = CHECKOUT / "deploy" / "kubernetes" / "workspaces.yaml"
BRIDGE_ADDRESS = "10.217.0.1"
CPU_SHARES = 16 * 1024
"""What all Pods of a node weigh together; a process outside of them weighs 1024."""
PROGRAMS = (b"etcd", b"kube-", b"node-init.sh", b"node.sh", b"registry")
"""What the kit starts, as its processes are called."""
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def where() -> str:
    """Say which cluster the tests would use; empty when there is none to be had."""
    if os.environ.get("KUBECONFIG"):
        return f"the cluster of KUBECONFIG={os.environ['KUBECONFIG']}"
    if os.geteuid() == 0 and (STATE / ".complete").exists():
        return f"the test cluster in {STATE}"
    if os.geteuid() == 0 and (KIT / "setup.sh").exists():
        return f"a test cluster made with {KIT}"
    return ""


@dataclass
class Namespace:
    """A namespace with the installation's account and Role, and nothing else of ours."""

    name: str
    kubeconfig: str
    """Of the account that has the Role, and no other right."""
    admin: Cluster
    """As somebody who may do everything; for looking, and for what an operator does."""
    admin_kubeconfig: str
    pull_registry: str
    pull_secret: str
    """With the account of our registry; empty where that asks for none."""
    own: bool
    """Whether the cluster is ours, so that nodes may be stopped."""
    enforcer: PolicyEnforcer | None
    proof: NetworkProof | None = None
    """What an earlier test has seen of network policies."""


@contextlib.contextmanager
def namespace(registry: str, folder: Path) -> Iterator[Namespace]:
    """Have a cluster with a namespace of its own; ``registry`` is ours, as ``host:port``."""
    enforcer: PolicyEnforcer | None = None
    own = not os.environ.get("KUBECONFIG")
    name = f"svc-test-{uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        kubeconfig = os.environ.get("KUBECONFIG") or stack.enter_context(_running())
        admin = Cluster(Access(kubeconfig), name, "", timeout=30)
        _apply(admin, name)
        stack.callback(admin._call, "DELETE", f"/api/v1/namespaces/{name}", {})
        restricted = _account(admin, name, Path(kubeconfig), folder)
        pull = os.environ.get("SVC_TEST_CLUSTER_REGISTRY", registry)
        if own:
            eventually(lambda: _takes_pods(admin), what="the node takes Pods")
            _storage_class(admin)
            pull = stack.enter_context(_forwarded(registry))
            enforcer = stack.enter_context(PolicyEnforcer(admin, "k8skit-n1"))
        secret = _registry_account(admin, name, pull)
        yield Namespace(name, restricted, admin, kubeconfig, pull, secret, own, enforcer)


@contextlib.contextmanager
def _running() -> Iterator[str]:
    """Have our cluster run for the block; the last of several processes that use it ends it."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "users.lock").open("w") as users:
        try:
            with starting():
                if _is_last(users):
                    _stopped()  # what a process that was killed has left
                fcntl.flock(users, fcntl.LOCK_SH)
                kubeconfig = _started()
            yield kubeconfig
        finally:
            with starting():
                if _is_last(users):
                    _stopped()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Be the only process that starts or ends the cluster."""
    with (STATE / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_last(users: IO[str]) -> bool:
    """Whether no other process uses the cluster; ``users`` is locked for good then."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stopped() -> None:
    """End what runs of the cluster, by its process ids."""
    if not (STATE / "down.sh").exists():
        return
    for place in (STATE / "state" / "pid").glob("*"):
        if not _is_of_the_cluster(place):
            place.unlink()  # the number is somebody else's by now
    subprocess.run([str(STATE / "down.sh")], check=True)


def _is_of_the_cluster(pid_file: Path) -> bool:
    try:
        place = Path("/proc") / pid_file.read_text("utf-8").strip() / "cmdline"
        return any(each in place.read_bytes() for each in PROGRAMS)
    except OSError:
        return False


def _started() -> str:
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    if not (STATE / ".complete").exists():
        subprocess.run([str(KIT / "setup.sh"), str(STATE)], check=True, env=environment)
    # Provisions volumes on the nodes, as a storage class of a real cluster would.
    environment["KCM_EXTRA"] = "--enable-hostpath-provisioner"
    with (STATE / "up.log").open("ab") as log:
        subprocess.run(
            [str(STATE / "up.sh"), "n1"], check=True, env=environment, stdout=log, stderr=log
        )
    weigh_pods()
    return str(STATE / "state" / "pki" / "admin.kubeconfig")


def weigh_pods() -> None:
    """Have Pods get on beside much else, to which all of them together are one process."""
    for place in Path("/sys/fs/cgroup/cpu").glob("k8skit-n*/cpu.shares"):
        place.write_text(str(CPU_SHARES))


def _takes_pods(admin: Cluster) -> bool:
    """Whether the first node is free of what keeps Pods away from one that has just come."""
    node = admin._call("GET", "/api/v1/nodes/n1", none_for=(404,))
    return node is not None and not node["spec"].get("taints")


def _storage_class(admin: Cluster) -> None:
    """Have what provisions volumes on the only node: our cluster comes without."""
    path = "/apis/storage.k8s.io/v1/storageclasses"
    if admin._call("GET", f"{path}/hostpath", none_for=(404,)) is None:
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        admin._call(
            "POST",
            path,
            {
                "metadata": {"name": "hostpath", "annotations": default},
                "provisioner": "kubernetes.io/host-path",
            },
        )


def _apply(admin: Cluster, name: str) -> None:
    """Do what ``kubectl apply`` of our manifest does, in a namespace of another name."""
    text = MANIFEST.read_text("utf-8").replace("svc-workspaces", name)
    for document in yaml.safe_load_all(text):
        admin._call("POST", _PATHS[document["kind"]].format(name), document)
    # Without it no Pod is admitted; the cluster makes it a moment after the namespace.
    path = f"{_PATHS['ServiceAccount'].format(name)}/default"
    eventually(lambda: admin._call("GET", path, none_for=(404,)), what="the default account")


def _registry_account(admin: Cluster, name: str, registry: str) -> str:
    """Give nodes the account of our registry as a Secret, as an operator does."""
    if not USERNAME:
        return ""
    auths = {registry: {"username": USERNAME, "password": PASSWORD}}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "registry-account"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps({"auths": auths})},
    }
    admin._call("POST", _PATHS["Secret"].format(name), secret)
    return "registry-account"


def _account(admin: Cluster, name: str, kubeconfig: Path, folder: Path) -> str:
    """Return a kubeconfig of the account with the Role."""
    token = _token(admin, name)
    found = yaml.safe_load(kubeconfig.read_text("utf-8"))
    found["users"] = [{"name": each["name"], "user": {"token": token}} for each in found["users"]]
    place = folder / "kubeconfig"
    place.touch(mode=0o600)
    place.write_text(yaml.safe_dump(found), "utf-8")
    return str(place)


def _token(admin: Cluster, name: str) -> str:
    path = f"/api/v1/namespaces/{name}/serviceaccounts/svc-controlplane/token"
    request: dict[str, Any] = {"spec": {"expirationSeconds": 7200}}
    answer = admin._call("POST", path, request) or {}
    return str(answer["status"]["token"])


@contextlib.contextmanager
def _forwarded(registry: str) -> Iterator[str]:
    """Let nodes reach our registry on the bridge; they are told that it speaks plain HTTP."""
    host, _, port = registry.partition(":")
    with on_the_bridge(lambda: socket.create_connection((host, int(port)))) as shown:
        _trust(shown)
        yield shown


def _trust(shown: str) -> None:
    """Tell the nodes that a registry speaks plain HTTP."""
    for node in ("n1", "n2", "n3"):
        place = STATE / "state" / node / "certs.d" / shown
        place.mkdir(parents=True, exist_ok=True)
        (place / "hosts.toml").write_text(
            f'server = "http://{shown}"\n[host."http://{shown}"]\n'
            '  capabilities = ["pull", "resolve"]\n'
        )


@contextlib.contextmanager
def on_the_bridge(connect: Callable[[], socket.socket]) -> Iterator[str]:
    """Let nodes and Pods of our own cluster reach what ``connect`` reaches, as ``host:port``."""
    listener = socket.create_server((BRIDGE_ADDRESS, 0))
    shown = f"{BRIDGE_ADDRESS}:{listener.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_relay, args=(client, connect), daemon=True).start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield shown
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        serving.join()


def _relay(client: socket.socket, connect: Callable[[], socket.socket]) -> None:
    with client, connect() as upstream:
        threads = [
            threading.Thread(target=_pump, args=pair, daemon=True)
            for pair in ((client, upstream), (upstream, client))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
