"""Workspaces as Pods of a Kubernetes namespace: the only place that imports its client.

``pod_adapter`` is the class that the product uses, ``pod_launch`` one launch until ready, ``pods``
what a Pod is made of and ``pod_state`` what has become of it, ``volume_claims`` who holds
volumes, ``network_policies`` whether they are enforced. ``exec_wire`` is an exec's WebSocket
without a socket; ``pod_channel`` (for threads) and ``pod_stream`` (for asyncio) have one.
``agent_calls`` are calls of the agent, over execs that are kept; ``relay`` is their other end.
"""

from workspaces.runtimes.kubernetes.pod_adapter import KubernetesAdapter

__all__ = ["KubernetesAdapter"]
