"""A workspace image with the real agent, and adapters whose containers are gone after the test."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import docker
import pytest
from docker.errors import ImageNotFound
from docker.models.containers import Container
from docker.models.networks import Network
from pytest_django.fixtures import Settings

from runs.agent_archive import agent_archive, agent_digest
from tests.conftest import Api
from tests.registries.account import ENGINE, PASSWORD, PUSH_REGISTRY, USERNAME
from tests.runs.agent.booted import RECORD
from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.boxes import Box
from workspaces.runtimes.base import LaunchedRuntime, LaunchRequest
from workspaces.runtimes.docker import DockerAdapter

DOCKER_HOST = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
BASE_IMAGE = os.environ.get("SVC_BASE_IMAGE_DEBIAN", "svc-base/debian:bookworm")
REPOSITORY = f"{PUSH_REGISTRY}/svc-test/workspace"

DOCKERFILE = f"""\
FROM {BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 sudo
RUN useradd --create-home --uid 1000 --shell /bin/bash workspace \\
 && echo 'workspace ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/workspace
COPY svc-agent /usr/lib/svc/agent
RUN ["/usr/lib/svc/agent", "compile"]
ENTRYPOINT ["/usr/lib/svc/agent", "boot"]
"""


def tar_of(**files: bytes) -> bytes:
    """A tar with the files, names with ``_`` for ``-``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("_", "-"))
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """The engine, asked directly, to see what the adapter did."""
    client = docker.DockerClient(base_url=DOCKER_HOST, timeout=round(LONG_WAIT))
    yield client
    client.close()


@pytest.fixture(scope="session")
def workspace_image(docker_client: docker.DockerClient) -> str:
    """The digest reference of an image with the agent, in the registry and in the engine."""
    return agent_image(docker_client)


def agent_image(client: docker.DockerClient) -> str:
    """Build an image with the agent and push it; return its digest reference."""
    context = tar_of(Dockerfile=DOCKERFILE.encode(), svc_agent=agent_archive())
    return published(client, context, tag=agent_digest()[:32])


@pytest.fixture
def publish(docker_client: docker.DockerClient) -> Iterator[Callable[[str], str]]:
    """Build and push the image of a Dockerfile, return its digest reference, forget it later."""
    made: list[str] = []

    def make(dockerfile: str) -> str:
        context = tar_of(Dockerfile=dockerfile.encode(), svc_agent=agent_archive())
        reference = published(docker_client, context, tag=uuid4().hex)
        made.append(str(docker_client.images.get(reference).id))
        return reference

    yield make
    for image_id in made:
        with contextlib.suppress(ImageNotFound):
            docker_client.images.remove(image_id, force=True)


def published(client: docker.DockerClient, context: bytes, *, tag: str) -> str:
    """Build an image and push it, and return its digest reference."""
    client.images.build(
        fileobj=io.BytesIO(context), custom_context=True, tag=f"{REPOSITORY}:{tag}", forcerm=True
    )
    for event in client.images.push(
        REPOSITORY, tag=tag, stream=True, decode=True, auth_config=ENGINE
    ):
        assert "error" not in event, event
        if "aux" in event:
            digest = event["aux"]["Digest"]
    return f"{REPOSITORY}@{digest}"


@dataclass
class Launcher:
    """Launches workspaces of one installation, as a worker would."""

    adapter: DockerAdapter
    client: docker.DockerClient
    image: str
    instance_id: str

    def request(self, run_id: UUID | None = None, **changes: Any) -> LaunchRequest:
        """A request with small limits; members of ``boot`` go in ``boot``."""
        run = run_id or uuid4()
        sudo = bool(changes.get("sudo", False))
        boot = boot_document(run, sudo=sudo) | changes.pop("boot", {})
        values: dict[str, Any] = {
            "instance_id": self.instance_id,
            "run_id": run,
            "attempt_id": uuid4(),
            "workspace_id": uuid4(),
            "job_id": uuid4(),
            "attempt_count": 1,
            "image": self.image,
            "boot": boot,
            "working_directory": "/workspace/repo",
            "outbound": False,
            "memory_mb": 256,
            "cpus": 1.0,
            "pids": 128,
            "sudo": sudo,
            "restart": False,
            "oci_runtime": "runc",
            "timeout": LONG_WAIT,
        }
        return LaunchRequest(**(values | changes))

    def launch(
        self, request: LaunchRequest | None = None, cancelled: threading.Event | None = None
    ) -> LaunchedRuntime:
        return self.adapter.launch(
            request or self.request(), cancelled=cancelled or threading.Event()
        )

    @contextlib.contextmanager
    def place_in_reach(self) -> Iterator[tuple[str, int]]:
        """Have a server that a workspace with a network could reach."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        with socket.create_server((address, 0)) as listener:
            yield listener.getsockname()[:2]

    def container(self, runtime: LaunchedRuntime) -> Container:
        return self.client.containers.get(runtime.resource_id)

    def inside(
        self, runtime: LaunchedRuntime, *command: str, user: str = "workspace"
    ) -> tuple[int, str]:
        """Run a command in the workspace; exit code and output of both streams."""
        code, output = self.container(runtime).exec_run(list(command), user=user)
        return int(code or 0), cast("bytes", output).decode()

    def left_over(self) -> list[str]:
        """The names of everything that the installation has in the engine."""
        containers = [str(container.name) for container in self.containers()]
        return sorted(containers + [str(network.name) for network in self.networks()])

    def containers(self) -> list[Container]:
        label = f"svc.instance={self.instance_id}"
        return self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)

    def networks(self) -> list[Network]:
        return self.client.networks.list(filters={"label": f"svc.instance={self.instance_id}"})


def boot_document(run_id: UUID, *, sudo: bool) -> dict[str, object]:
    """The agent's configuration for a workspace without steps."""
    return {
        "version": 1,
        "runId": str(run_id),
        "workspaceId": str(uuid4()),
        "attemptId": str(uuid4()),
        "user": "workspace",
        "home": "/home/workspace",
        "shell": "/bin/bash",
        "sudo": sudo,
        "workspaceRoot": "/workspace",
        "workingDirectory": "/workspace/repo",
        "env": {},
        "dotfiles": None,
        "setup": [],
        "startup": [],
        "foreground": {"kind": "harness", "command": []},
        "limits": {"stepSeconds": round(LONG_WAIT), "graceSeconds": 2, "tailBytes": 8192},
        "record": RECORD,
        "secrets": [],
    }


def step(run: str, name: str = "prepare") -> dict[str, object]:
    """One setup or startup step."""
    return {"name": name, "run": run, "shell": "bash", "workingDirectory": None}


@pytest.fixture
def make_launcher(
    docker_client: docker.DockerClient, workspace_image: str, publish: Callable[[str], str]
) -> Iterator[Callable[..., Launcher]]:
    """Make launchers of unique installations; all that they left is removed afterwards.

    It asks for ``publish`` so that images of a test's own are removed after their containers.
    """
    made: list[Launcher] = []

    def make(**options: Any) -> Launcher:
        instance_id = str(uuid4())
        account = {"registry_username": USERNAME, "registry_password": PASSWORD}
        adapter = DockerAdapter(DOCKER_HOST, instance_id, **{**account, **options})
        made.append(Launcher(adapter, docker_client, workspace_image, instance_id))
        return made[-1]

    yield make
    for launcher in made:
        for container in launcher.containers():
            remove_container(container)
        for network in launcher.networks():
            network.remove()


@pytest.fixture
def launcher(make_launcher: Callable[..., Launcher]) -> Launcher:
    """One installation with the default settings."""
    return make_launcher()


@pytest.fixture
def silent_engine(tmp_path: Path) -> Iterator[str]:
    """The address of an engine that accepts connections and never answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        yield f"unix://{tmp_path}/engine.sock"


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """Host and port of a registry that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def box(api: Api, make_launcher: Callable[..., Launcher], settings: Settings) -> Box:
    """A workspace that runs, with the rows of a ready one."""
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    return Box.of(api, launcher, run_id, launcher.launch(launcher.request(run_id)))
