"""Workspaces as Pods of a Kubernetes namespace: the only place that imports its client.

``adapter`` is the class that the product uses, ``launch`` one launch from image to ready, ``pods``
what a Pod is made of and ``pod_state`` what has become of it, ``claims`` the volumes and who holds
them, ``network_proof`` whether network policies are enforced. ``exec_wire`` is an exec's WebSocket
without a socket; ``exec_channel`` (for threads) and ``exec_stream`` (for asyncio) have one.
"""

from workspaces.runtimes.kubernetes.adapter import KubernetesAdapter

__all__ = ["KubernetesAdapter"]
