"""The registry that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from controlplane.errors import Fault, NotFound
from registries.client import Manifest, RegistryClient, RegistryError
from registries.own_repositories import repository_not_found

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry as clients may know it: without its account."""

    name: str
    base_url: str
    push_registry: str
    has_basic_auth: bool


def configured_registry(*, read_timeout: float | None = None) -> RegistryClient:
    """Return a client of the configured registry; ``read_timeout`` in seconds, if not the usual."""
    return RegistryClient(
        settings.REGISTRY_BASE_URL,
        username=settings.REGISTRY_USERNAME or None,
        password=settings.REGISTRY_PASSWORD or None,
        connect_timeout=settings.REGISTRY_CONNECT_TIMEOUT_MS / 1000,
        read_timeout=read_timeout or settings.REGISTRY_READ_TIMEOUT_MS / 1000,
        total_timeout=settings.REGISTRY_TOTAL_TIMEOUT_MS / 1000,
        extra_ca_file=settings.SVC_EXTRA_CA_FILE or None,
    )


def ping_configured_registry() -> str:
    """Say that the registry answers; raise ``ControlPlaneError`` when it does not."""
    configured_registry(read_timeout=settings.REGISTRY_CONNECT_TIMEOUT_MS / 1000).ping()
    return "It answers."


def describe_registry(registry_id: str) -> Registry:
    """Return what is known of a registry without asking it; raise ``NotFound`` for another one."""
    _require_registry(registry_id)
    url = urlsplit(settings.REGISTRY_BASE_URL)
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    return Registry(
        name=settings.REGISTRY_NAME,
        base_url=shown.geturl(),
        push_registry=settings.REGISTRY_PUSH_REGISTRY,
        has_basic_auth=bool(settings.REGISTRY_USERNAME and settings.REGISTRY_PASSWORD),
    )


@contextmanager
def open_registry(registry_id: str) -> Iterator[RegistryClient]:
    """Give a client of the registry ``registry_id``; raise ``NotFound`` for another one.

    Its failures are logged, with what their readers are not told.
    """
    _require_registry(registry_id)
    client = configured_registry()
    try:
        yield client
    except RegistryError as error:
        log.warning(
            "registry_failed",
            reason=error.reason.value,
            upstream_status=error.upstream_status,
            cause=error.cause or error.detail,
        )
        raise
    finally:
        client.close()


def read_manifest(client: RegistryClient, *, repository: str, reference: str) -> Manifest:
    """Return the manifest that a tag or digest names.

    Raises ``NotFound``: ``repository-not-found`` or, when only the reference is unknown,
    ``manifest-not-found``.
    """
    manifest = client.get_manifest(repository, reference)
    if manifest is not None:
        return manifest
    # Registries answer both alike here; only the list of tags knows whether there is a repository.
    if client.list_tags(repository) is None:
        raise repository_not_found()
    raise NotFound(
        "The repository has no such tag or digest.",
        code="manifest-not-found",
        errors=[Fault("unknown-reference", "It does not exist.", parameter="reference")],
    )


def _require_registry(registry_id: str) -> None:
    if registry_id != settings.REGISTRY_NAME:
        detail = f'The configured registry is "{settings.REGISTRY_NAME}".'
        raise NotFound(
            "This installation has no such registry.",
            code="registry-not-found",
            errors=[Fault("unknown-registry", detail, parameter="registryId")],
        )
