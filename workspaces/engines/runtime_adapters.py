"""The adapter that launches workspaces, as ``DEFAULT_RUNTIME_ADAPTER`` says.

Images are built by a Docker Engine in any case: :mod:`workspaces.engines.engine_adapters` has it.
"""

from __future__ import annotations

from django.conf import settings

from workspaces.engines.engine_adapters import served_adapter, shared_adapter
from workspaces.runtimes.base import RuntimeAdapter
from workspaces.runtimes.configured_cluster import kubernetes_adapter, on_kubernetes


def placement_engine() -> str:
    """Return the name of the engine whose jobs, runs and transitions this process claims.

    Empty on Kubernetes, where nothing is placed: its Docker Engine only builds, and what any of
    them has built runs in the same namespace.
    """
    return "" if on_kubernetes() else settings.SVC_ENGINE


def runtime_adapter() -> RuntimeAdapter:
    """Return an adapter of the chosen kind for what this process serves."""
    return kubernetes_adapter() if on_kubernetes() else served_adapter()


def shared_runtime_adapter(engine_name: str = "") -> RuntimeAdapter:
    """Return the one adapter of this process, for calls of which there are many.

    Of several engines the one of that name; raises as ``shared_adapter`` does.
    """
    return kubernetes_adapter() if on_kubernetes() else shared_adapter(engine_name)
