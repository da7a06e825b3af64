"""The way into a workspace for asyncio, wherever the control plane says that it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workspaces.runtimes import boot
from workspaces.runtimes.agent_streams import AgentStream, Receiver
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.configured_cluster import kubernetes_adapter, on_kubernetes
from workspaces.runtimes.docker import endpoints as docker_endpoints

PODS = "kubernetes-exec"


async def open_endpoint(
    endpoint: str,
    docker_host: str,
    argv: Sequence[str],
    receiver: Receiver,
    *,
    timeout: float,
    engines: Path = docker_endpoints.NO_ENGINES,
) -> AgentStream:
    """Start ``argv`` where a workspace is: ``docker-exec://…`` or ``kubernetes-exec://ns/pod``.

    ``engines`` is the folder of the engines besides that of ``docker_host``.
    Raises ``LaunchError``: ``runtime-gone``, ``runtime-not-running``, ``adapter-unavailable``.
    """
    scheme, _, place = endpoint.partition("://")
    if scheme != PODS:
        return await docker_endpoints.open_endpoint(
            endpoint, docker_host, argv, receiver, timeout=timeout, engines=engines
        )
    namespace, _, pod = place.partition("/")
    if not on_kubernetes() or argv[0] != boot.AGENT:
        raise LaunchError("adapter-unavailable", "The workspace cannot be reached where it runs.")
    cluster = kubernetes_adapter().cluster
    if namespace != cluster.namespace:
        raise LaunchError("runtime-gone", "The workspace is in another namespace.")
    from workspaces.runtimes.kubernetes.pod_stream import PodStream

    return await PodStream.open(cluster, pod, argv[1:], receiver, timeout=timeout)
