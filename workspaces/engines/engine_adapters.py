"""The adapter of the engine that this process serves, and those of the others."""

from __future__ import annotations

import contextlib
import threading
from functools import cache
from pathlib import Path

from django.conf import settings

from workspaces.engines.certificates import CertificatesError, unpacked
from workspaces.models import Engine
from workspaces.models.known_engines import LOCAL_ENGINE
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.configured import configured_adapter
from workspaces.runtimes.docker import DockerAdapter
from workspaces.runtimes.docker.remote.engine_folders import docker_host_of
from workspaces.runtimes.docker.remote.tls_tunnel import EngineAddress, TlsTunnel

PROBE_SECONDS = 20.0

_unpacking = threading.Lock()


def served_adapter() -> DockerAdapter:
    """Return an adapter of the engine that this process serves (``SVC_ENGINE``)."""
    return _adapter(served_docker_host(), settings.SVC_ENGINE)


def shared_adapter(engine_name: str = "") -> DockerAdapter:
    """Return the one adapter of this process for an engine, for calls of which there are many.

    Without a name it is the engine that the process serves. Raises ``adapter-unavailable`` for one
    that is gone.
    """
    name = engine_name or settings.SVC_ENGINE
    host = served_docker_host() if name == settings.SVC_ENGINE else _host_of_row(name)
    return _adapter_of(host, settings.SVC_INSTANCE_ID, name)


def served_docker_host() -> str:
    """Return where the engine that this process serves listens."""
    if settings.SVC_ENGINE == LOCAL_ENGINE:
        return settings.DOCKER_HOST
    return _host_of_row(settings.SVC_ENGINE)


def engine_id_at(url: str, certificates: Path | None) -> str:
    """Return what the engine at an address calls itself, before anything is written of it.

    Raises ``LaunchError`` with the reason.
    """
    with contextlib.ExitStack() as stack:
        docker_host = url
        if certificates is not None:
            tunnel = TlsTunnel(EngineAddress.of(url, certificates))
            stack.callback(tunnel.close)
            docker_host = tunnel.docker_host
        adapter = DockerAdapter(docker_host, instance_id="svc", engine_timeout=PROBE_SECONDS)
        stack.callback(adapter.close)
        adapter.check()
        found = adapter.engine_id()
    if not found:
        raise LaunchError("adapter-unavailable", "The engine does not report its id.")
    return found


def _host_of_row(name: str) -> str:
    """Return where an engine listens, by its row; an engine without an address is ours."""
    engine = Engine.objects.known().filter(pk=name).first()
    if engine is None:
        raise LaunchError(
            "adapter-unavailable", f"There is no engine {name}; manage.py engine add adds one."
        )
    if not engine.url:
        return settings.DOCKER_HOST
    try:
        with _unpacking:
            folder = unpacked(engine)
    except (CertificatesError, OSError) as error:
        raise LaunchError(
            "adapter-unavailable", f"The certificates of the engine {name} cannot be used."
        ) from error
    return docker_host_of(folder)


def _adapter(docker_host: str, engine_name: str) -> DockerAdapter:
    in_endpoints = "" if engine_name == LOCAL_ENGINE else engine_name
    return configured_adapter(docker_host=docker_host, engine_name=in_endpoints)


@cache
def _adapter_of(docker_host: str, _instance_id: str, engine_name: str) -> DockerAdapter:
    return _adapter(docker_host, engine_name)
