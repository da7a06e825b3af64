"""The control plane in a cluster, of the manifests as they are: ready, and a workspace works."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import docker
import pytest
import yaml
from django.conf import settings

from controlplane.security.preview_links import TOKEN_HEADER
from tests.conftest import OWNER
from tests.deploy.kubernetes.manifests import FOLDER, composed, containers, kubectl, pods
from tests.registries.account import PASSWORD, PUSH_REGISTRY, USERNAME
from tests.stack import cluster
from tests.stack.cluster import Namespace
from tests.stack.control_plane_image import built, in_the_node
from tests.stack.worker_process import eventually
from tests.support.waiting import BUILD_WAIT, LONG_WAIT
from workspaces.runtimes.kubernetes.pod_channel import ExecChannel

# The fixture also builds the images and has the cluster set up.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(3600)]

PARTS = ("api", "buildworker", "runworker", "sshgateway", "previewgateway")
LIMITS = (
    "DATABASE_IDLE_TRANSACTION_TIMEOUT_MS",
    "DOCKER_TIMEOUT_MS",
    "KUBERNETES_START_TIMEOUT_MS",
    "KUBERNETES_TIMEOUT_MS",
    "RABBITMQ_CONNECT_TIMEOUT_MS",
    "REGISTRY_CONNECT_TIMEOUT_MS",
    "REGISTRY_READ_TIMEOUT_MS",
    "REGISTRY_TOTAL_TIMEOUT_MS",
    "WORKER_HEARTBEAT_STALE_MS",
)
"""What is not to strike on a machine that is slow."""
ASK = """
import sys, urllib.error, urllib.request
method, url, body, *headers = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, method=method)
for each in ["content-type: application/json", *headers]:
    request.add_header(*each.split(": "))
try:
    print(urllib.request.urlopen(request).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""


@dataclass
class Deployed:
    """A control plane in a namespace, and the one of its workspaces."""

    workspaces: Namespace
    name: str

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Do something as the operator; return what that printed."""
        done = subprocess.run(
            [kubectl(), f"--kubeconfig={self.workspaces.admin_kubeconfig}", *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=BUILD_WAIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, documents: list[dict[str, Any]]) -> None:
        """Have these objects."""
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(documents))

    def get(self, *what: str) -> Any:
        """Read objects of its namespace."""
        return json.loads(self.kubectl("-n", self.name, "get", *what, "-o", "json"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API, from inside its own Pod."""
        given = json.dumps(body) if body else ""
        return json.loads(self._said("api", method, f"http://127.0.0.1:4000{path}", given))

    def preview(self, link: Any) -> str:
        """Return what is behind a link to a port, asked for inside the preview gateway's Pod."""
        place = urlsplit(link["url"])
        headers = (f"host: {place.netloc}", f"{TOKEN_HEADER}: {link['token']}")
        url = f"http://127.0.0.1:4080{place.path}"
        return self._said("previewgateway", "GET", url, "", *headers)

    def _said(self, part: str, *request: str) -> str:
        (pod,) = [
            each["metadata"]["name"]
            for each in self.get("pods", "-l", f"svc.part={part}")["items"]
            if "deletionTimestamp" not in each["metadata"]
        ]
        command = ["python", "-c", ASK, *request]
        access = self.workspaces.admin.access
        channel = ExecChannel.open(
            access, self.name, pod, part, command, timeout=LONG_WAIT, framed=False
        )
        with contextlib.closing(channel):
            answer = channel.answer(b"", LONG_WAIT)
        assert answer is not None
        assert answer.exit_code == 0, answer.stderr
        return answer.stdout.decode()

    def remove(self) -> None:
        """Have it go away, without waiting for it."""
        self.kubectl("delete", "namespace", self.name, "--wait=false")

    def is_ready(self, kind: str, name: str) -> bool:
        """Whether all of a part is."""
        status = self.get(kind, name)["status"]
        return bool(status.get("readyReplicas") or status.get("succeeded"))

    def told(self) -> str:
        """What is known of its Pods, for a failure."""
        found = [self.kubectl("-n", self.name, "get", "pods", "-o", "wide")]
        for part in (*PARTS, "migrate", "postgres", "rabbitmq"):
            chosen = ("logs", "-l", f"svc.part={part}", "--all-containers", "--tail=15")
            with contextlib.suppress(AssertionError):
                found.append(f"--- {part}\n{self.kubectl('-n', self.name, *chosen)}")
        return "\n".join(found)


def engine() -> socket.socket:
    """Connect to the engine that builds."""
    scheme, _, place = settings.DOCKER_HOST.partition("://")
    if scheme != "unix":
        host, _, port = place.partition(":")
        return socket.create_connection((host, int(port)))
    found = socket.socket(socket.AF_UNIX)
    found.connect(place)
    return found


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """The example, with images of this checkout and addresses: our cluster has no name server."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    client = docker.DockerClient(base_url=settings.DOCKER_HOST, timeout=int(BUILD_WAIT))
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        images = stack.enter_context(built(client))
        place = stack.enter_context(cluster.namespace(PUSH_REGISTRY, folder))
        stack.enter_context(in_the_node(images.values()))
        builder = stack.enter_context(cluster.on_the_bridge(engine))
        made = Deployed(place, f"svc-deployed-{uuid4().hex[:8]}")
        made.kubectl("create", "namespace", made.name)
        stack.callback(made.remove)
        documents = of_the_example(made, images)
        made.apply([each for each in documents if each["kind"] == "Service"])
        addresses = {
            each["metadata"]["name"]: each["spec"]["clusterIP"]
            for each in made.get("services")["items"]
        }
        configure(documents, made, addresses, builder)
        # As Kustomize sorts them: what Pods are given comes before them.
        documents.sort(key=lambda each: each["kind"] not in ("ConfigMap", "Secret"))
        made.apply(documents)
        yield made


def of_the_example(made: Deployed, images: dict[str, str]) -> list[dict[str, Any]]:
    """Return the example's objects in namespaces of their own, with these images."""
    found = [*composed(FOLDER / "access"), *composed(FOLDER / "example")]
    text = yaml.safe_dump_all(each for each in found if each["kind"] != "Namespace")
    # The longer name first: the other one is a part of it.
    text = text.replace("svc-workspaces", made.workspaces.name)
    text = text.replace("namespace: svc\n", f"namespace: {made.name}\n")
    for name, reference in images.items():
        text = text.replace(f"image: {name}\n", f"image: {reference}\n")
    return list(yaml.safe_load_all(text))


def configure(
    documents: list[dict[str, Any]],
    made: Deployed,
    addresses: dict[str, str],
    builder: str,
) -> None:
    """Write settings and secrets, as an operator does in a copy of the example."""
    database, broker = secrets.token_hex(16), secrets.token_hex(16)
    place = made.workspaces
    given = {
        "KUBERNETES_PULL_REGISTRY": place.pull_registry,
        "KUBERNETES_PULL_SECRET": place.pull_secret,
        "KUBERNETES_VOLUME_SIZE": "64Mi",
        "DOCKER_HOST": f"tcp://{builder}",
        "REGISTRY_BASE_URL": f"http://{place.pull_registry}",
        "REGISTRY_PUSH_REGISTRY": PUSH_REGISTRY,
        "SVC_ALLOWED_HOSTS": f"127.0.0.1,{addresses['api']}",
        "SVC_INSTANCE_ID": str(uuid4()),
        "SVC_BASE_IMAGE_DEBIAN": settings.SVC_BASE_IMAGES["debian"],
        # The engine's machine has a guard of its own; what Pods reach is not asked here.
        "SVC_NETWORK_GUARD": "external",
        "PACKAGE_SYNC_FAMILIES": "",
        **dict.fromkeys(LIMITS, str(int(LONG_WAIT * 1000))),
    }
    hidden = {
        "SVC_DB_PASSWORD": database,
        "SVC_RABBITMQ_PASSWORD": broker,
        "DATABASE_URL": f"postgres://svc:{database}@{addresses['postgres']}:5432/svc",
        "RABBITMQ_URL": f"amqp://svc:{broker}@{addresses['rabbitmq']}:5672/",
        "WEB_AUTH_SECRET": secrets.token_hex(32),
        "WORKSPACE_SSH_GATEWAY_TOKEN": secrets.token_hex(32),
        "REGISTRY_USERNAME": USERNAME or "",
        "REGISTRY_PASSWORD": PASSWORD or "",
    }
    for document in documents:
        if document["metadata"]["name"] == "svc-settings":
            document["data"] |= given
        if document["metadata"]["name"] == "svc-secrets":
            document["stringData"] |= {name: value for name, value in hidden.items() if value}
    for _, pod in pods(documents):
        # Nobody answers there: what asks for a name hears so at once, not after ten seconds.
        pod |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
        for volume in pod.get("volumes", ()):
            # The volumes of our cluster's class belong to root, whatever ``fsGroup`` says.
            if volume.pop("persistentVolumeClaim", None):
                volume["emptyDir"] = {}
        for container in containers(pod):
            patient(container)
            for each in container.get("env", ()):
                if each["name"] == "SSH_GATEWAY_API_BASE_URL":
                    each["value"] = f"http://{addresses['api']}:4000"


def patient(container: dict[str, Any]) -> None:
    """Have a container's probes bear a slow machine, and leave room for others' Pods."""
    container["resources"]["requests"] = {"cpu": "20m", "memory": "16Mi"}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in container:
            container[kind] |= {"timeoutSeconds": 30, "failureThreshold": 1000}


def test_every_part_becomes_ready(deployed: Deployed) -> None:
    wanted = [("statefulset", "postgres"), ("statefulset", "rabbitmq"), ("job", "migrate")]
    try:
        for kind, name in (*wanted, *(("deployment", part) for part in PARTS)):
            eventually(
                lambda kind=kind, name=name: deployed.is_ready(kind, name),  # type: ignore[misc]
                what=f"{name} is ready",
                timeout=BUILD_WAIT,
                every=1.0,
            )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{deployed.told()}") from None


def test_a_workspace_is_built_becomes_a_pod_and_runs_a_command_and_a_server(
    deployed: Deployed,
) -> None:
    asked = {
        "ownerUserId": OWNER,
        "registryId": "default",
        "repository": f"tests/deployed-{uuid4().hex[:12]}",
        "tag": "latest",
        "spec": {"harness": {"id": "shell"}},
    }
    made = deployed.ask("POST", "/v1/sandboxes", asked)
    assert "sandboxId" in made, made
    path = f"/v1/sandboxes/{made['sandboxId']}"

    def settled() -> Any:
        seen = deployed.ask("GET", f"{path}?ownerUserId={OWNER}")
        return seen if seen["status"] in ("ready", "failed") else None

    try:
        seen = eventually(settled, what="it is ready", timeout=BUILD_WAIT, every=1.0)
        assert seen["status"] == "ready", seen
        assert seen["runtime"]["adapter"] == "kubernetes"
        command = {"ownerUserId": OWNER, "command": ["sh", "-c", "echo from a Pod; exit 5"]}
        done = deployed.ask("POST", f"/v1/workspaces/{made['workspaceId']}/exec", command)
        assert (done["exitCode"], done["stdout"]) == (5, "from a Pod\n"), done
        files = f"/v1/workspaces/{made['workspaceId']}/files/list?ownerUserId={OWNER}&path=."
        assert "items" in deployed.ask("GET", files)
        script = "cd /tmp; echo from a port >page; exec python3 -m http.server 8000"
        server = {"ownerUserId": OWNER, "command": ["sh", "-c", script], "background": True}
        deployed.ask("POST", f"/v1/workspaces/{made['workspaceId']}/exec", server)
        place = f"/v1/workspaces/{made['workspaceId']}/ports/8000/links"
        link = deployed.ask("POST", place, {"ownerUserId": OWNER, "path": "/page"})
        eventually(
            lambda: deployed.preview(link).strip() == "from a port",
            what="the port is reached through the preview gateway",
            timeout=LONG_WAIT,
            every=1.0,
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{deployed.told()}") from None
