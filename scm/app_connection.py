"""The app at the provider that the settings name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.conf import settings

from controlplane.errors import Fault, ServiceUnavailable
from scm.provider import ProviderClient, ProviderError

log = structlog.get_logger(__name__)

ASKED_AT_ONCE = 3
"""Requests of clients that one process asks the provider for at a time; one that is slow must not
take all threads of the API."""
PLACE_SECONDS = 3.0
"""How long the others wait for one of them to be answered."""

_asking = threading.BoundedSemaphore(ASKED_AT_ONCE)


class ProviderBusy(ServiceUnavailable):
    """The provider is being asked for enough clients; ``wait`` becomes ``Retry-After``, seconds."""

    code = "scm-busy"
    wait = 5


def is_app_configured() -> bool:
    """Tell whether this installation has an app at a source-hosting provider."""
    return bool(settings.SCM_APP_ID and settings.SCM_APP_PRIVATE_KEY)


def require_app(*faults: Fault) -> None:
    """Raise ``ServiceUnavailable`` (``scm-app-unconfigured``) unless there is an app."""
    if not is_app_configured():
        raise ServiceUnavailable(
            "This installation is not connected to a source-hosting provider.",
            code="scm-app-unconfigured",
            errors=faults,
        )


@contextmanager
def asking_for_a_client() -> Iterator[None]:
    """Be one of the few, soon; raise ``ServiceUnavailable`` (``scm-busy``) otherwise."""
    if not _asking.acquire(timeout=PLACE_SECONDS):
        raise ProviderBusy("The source-hosting provider is busy with requests of other clients.")
    try:
        yield
    finally:
        _asking.release()


@contextmanager
def open_provider() -> Iterator[ProviderClient]:
    """Give a client of the provider; its failures are logged, with what readers are not told."""
    require_app()
    client = ProviderClient(
        settings.SCM_API_BASE_URL,
        app_id=settings.SCM_APP_ID,
        private_key=settings.SCM_APP_PRIVATE_KEY,
        connect_timeout=settings.SCM_API_CONNECT_TIMEOUT_MS / 1000,
        read_timeout=settings.SCM_API_READ_TIMEOUT_MS / 1000,
        total_timeout=settings.SCM_API_TOTAL_TIMEOUT_MS / 1000,
        extra_ca_file=settings.SVC_EXTRA_CA_FILE or None,
    )
    try:
        yield client
    except ProviderError as error:
        log.warning(
            "scm_provider_failed",
            reason=error.reason.value,
            upstream_status=error.upstream_status,
            cause=error.cause or error.detail,
        )
        raise
    finally:
        client.close()
