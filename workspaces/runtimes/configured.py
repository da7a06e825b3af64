"""The runtime adapter that the settings ask for."""

from __future__ import annotations

from django.conf import settings

from workspaces.runtimes.docker import DockerAdapter


def configured_adapter(*, docker_host: str = "", engine_name: str = "") -> DockerAdapter:
    """Return the adapter of the configured Docker Engine, or of another one by its address.

    ``engine_name`` is what endpoints call that one (``workspaces.engines.engine_adapters``).
    """
    return DockerAdapter(
        docker_host=docker_host or settings.DOCKER_HOST,
        instance_id=settings.SVC_INSTANCE_ID,
        network_pool=settings.SVC_WORKSPACE_NETWORK_POOL,
        engine_timeout=settings.DOCKER_TIMEOUT_MS / 1000,
        registry_username=settings.REGISTRY_USERNAME or None,
        registry_password=settings.REGISTRY_PASSWORD or None,
        engine_name=engine_name,
    )
