"""The runtime adapter that the settings ask for."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from workspaces.runtimes.docker import DockerAdapter


def configured_adapter() -> DockerAdapter:
    """Return the adapter of the configured Docker Engine."""
    return DockerAdapter(
        docker_host=settings.DOCKER_HOST,
        instance_id=settings.SVC_INSTANCE_ID,
        network_pool=settings.SVC_WORKSPACE_NETWORK_POOL,
        engine_timeout=settings.DOCKER_TIMEOUT_MS / 1000,
        registry_username=settings.REGISTRY_USERNAME or None,
        registry_password=settings.REGISTRY_PASSWORD or None,
    )


def shared_adapter() -> DockerAdapter:
    """Return the one adapter of this process, for calls of which there are many."""
    return _adapter_of(settings.DOCKER_HOST, settings.SVC_INSTANCE_ID)


@cache
def _adapter_of(docker_host: str, instance_id: str) -> DockerAdapter:
    return configured_adapter()
