"""The adapter of the cluster that the settings name; needs no database.

The cluster's client is loaded only where it is used, since it takes half a second.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from workspaces.runtimes.kubernetes import KubernetesAdapter

KUBERNETES = "kubernetes"


def on_kubernetes() -> bool:
    """Whether workspaces are Pods."""
    return bool(settings.DEFAULT_RUNTIME_ADAPTER == KUBERNETES)


def kubernetes_adapter() -> KubernetesAdapter:
    """Return the adapter of the configured namespace; one for each process."""
    return _kubernetes(
        settings.SVC_INSTANCE_ID, settings.KUBERNETES_NAMESPACE, settings.KUBERNETES_KUBECONFIG
    )


@cache
def _kubernetes(instance_id: str, namespace: str, kubeconfig: str) -> KubernetesAdapter:
    from workspaces.runtimes.kubernetes import KubernetesAdapter
    from workspaces.runtimes.kubernetes.pod_placement import PodPlacement
    from workspaces.runtimes.kubernetes.pods import PodOptions

    return KubernetesAdapter(
        instance_id,
        namespace,
        kubeconfig=kubeconfig,
        options=PodOptions(
            pull_registry=settings.KUBERNETES_PULL_REGISTRY,
            pull_secret=settings.KUBERNETES_PULL_SECRET,
            probe_image=settings.KUBERNETES_PROBE_IMAGE,
            storage_class=settings.KUBERNETES_STORAGE_CLASS,
            volume_size=settings.KUBERNETES_VOLUME_SIZE,
            ephemeral_storage=settings.KUBERNETES_EPHEMERAL_STORAGE,
            placement=PodPlacement(
                settings.KUBERNETES_NODE_SELECTOR, settings.KUBERNETES_TOLERATIONS
            ),
        ),
        guarded=settings.SVC_NETWORK_GUARD == "on",
        api_timeout=settings.KUBERNETES_TIMEOUT_MS / 1000,
        start_timeout=settings.KUBERNETES_START_TIMEOUT_MS / 1000,
    )
