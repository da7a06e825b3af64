"""The images that the manifests name, built of this checkout and put into our cluster's node."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import docker
from django.conf import settings

from tests.stack import cluster
from tests.support.waiting import BUILD_WAIT

CHECKOUT = Path(__file__).resolve().parents[2]
_BUILDS = {
    "svc-controlplane": ("-f", "deploy/Dockerfile", "."),
    "svc-postgres": ("deploy/images/postgres",),
    "svc-rabbitmq": ("deploy/images/rabbitmq",),
}


@contextlib.contextmanager
def built(client: docker.DockerClient) -> Iterator[dict[str, str]]:
    """Have the engine build them; yield the names of these for the manifests' names."""
    tag = uuid4().hex[:12]
    images = {name: f"svc-test/{name}:{tag}" for name in _BUILDS}
    engine = os.environ | {"DOCKER_HOST": settings.DOCKER_HOST, "DOCKER_BUILDKIT": "1"}
    with contextlib.ExitStack() as stack:
        for name, reference in images.items():
            command = [settings.DOCKER_CLI, "build", "--quiet", "-t", reference]
            command += ["--build-arg", f"BASE_IMAGE={settings.SVC_BASE_IMAGES['debian']}"]
            if settings.SVC_EXTRA_CA_FILE:
                command += ["--secret", f"id=ca,src={settings.SVC_EXTRA_CA_FILE}"]
            subprocess.run(
                [*command, *_BUILDS[name]],
                cwd=CHECKOUT,
                env=engine,
                timeout=2 * BUILD_WAIT,
                check=True,
            )
            stack.callback(client.images.remove, reference)
        yield images


@contextlib.contextmanager
def in_the_node(images: Iterable[str]) -> Iterator[None]:
    """Let our cluster's node have images of the engine for the block, without any registry."""
    names = [f"docker.io/{image}" for image in images]
    try:
        save = [settings.DOCKER_CLI, "-H", settings.DOCKER_HOST, "save", *images]
        with subprocess.Popen(save, stdout=subprocess.PIPE) as saving:
            subprocess.run(
                [*_ctr(), "import", "-"], stdin=saving.stdout, timeout=2 * BUILD_WAIT, check=True
            )
        assert saving.returncode == 0
        yield
    finally:
        subprocess.run([*_ctr(), "rm", *names], timeout=BUILD_WAIT, check=False)


def _ctr() -> list[str]:
    program = str(cluster.STATE / "root" / "usr" / "bin" / "ctr")
    place = str(cluster.STATE / "state" / "n1" / "containerd.sock")
    return [program, "--address", place, "--namespace", "k8s.io", "images"]
