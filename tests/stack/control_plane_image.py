"""The images that the manifests name, built of this checkout and pushed to the tests' registry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import docker
from django.conf import settings

from tests.registries.account import ENGINE, PUSH_REGISTRY
from tests.support.waiting import BUILD_WAIT

CHECKOUT = Path(__file__).resolve().parents[2]
_BUILDS = {
    "controlplane": ("-f", "deploy/Dockerfile", "."),
    "postgres": ("deploy/images/postgres",),
    "rabbitmq": ("deploy/images/rabbitmq",),
}


def built(client: docker.DockerClient, name: str) -> str:
    """Build and push one of ours; return its digest reference."""
    repository = f"{PUSH_REGISTRY}/svc-test/{name}"
    command = [settings.DOCKER_CLI, "build", "--quiet", "-t", f"{repository}:deployed"]
    command += ["--build-arg", f"BASE_IMAGE={settings.SVC_BASE_IMAGES['debian']}"]
    if settings.SVC_EXTRA_CA_FILE:
        command += ["--secret", f"id=ca,src={settings.SVC_EXTRA_CA_FILE}"]
    engine = {"DOCKER_HOST": settings.DOCKER_HOST, "DOCKER_BUILDKIT": "1"}
    subprocess.run(
        [*command, *_BUILDS[name]],
        cwd=CHECKOUT,
        env=os.environ | engine,
        timeout=2 * BUILD_WAIT,
        check=True,
    )
    for event in client.images.push(
        repository, tag="deployed", stream=True, decode=True, auth_config=ENGINE
    ):
        assert "error" not in event, event
        if "aux" in event:
            digest = event["aux"]["Digest"]
    client.images.remove(f"{repository}:deployed")
    return f"{repository}@{digest}"
