"""The registry that the settings name."""

from __future__ import annotations

from django.conf import settings

from registries.client import RegistryClient


def configured_registry(*, read_timeout: float | None = None) -> RegistryClient:
    """Return a client of the configured registry; ``read_timeout`` in seconds, if not the usual."""
    return RegistryClient(
        settings.REGISTRY_BASE_URL,
        username=settings.REGISTRY_USERNAME or None,
        password=settings.REGISTRY_PASSWORD or None,
        connect_timeout=settings.REGISTRY_CONNECT_TIMEOUT_MS / 1000,
        read_timeout=read_timeout or settings.REGISTRY_READ_TIMEOUT_MS / 1000,
        extra_ca_file=settings.SVC_EXTRA_CA_FILE or None,
    )
