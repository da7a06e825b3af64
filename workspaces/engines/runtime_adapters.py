"""The adapter that launches workspaces, as ``DEFAULT_RUNTIME_ADAPTER`` says.

Images are built by a Docker Engine in any case: :mod:`workspaces.engines.engine_adapters` has it.
"""

from __future__ import annotations

from dataclasses import replace

from workspaces.engines.engine_adapters import served_adapter, shared_adapter
from workspaces.runtimes.base import EngineFacts, RuntimeAdapter
from workspaces.runtimes.configured_cluster import kubernetes_adapter, on_kubernetes


def runtime_adapter() -> RuntimeAdapter:
    """Return an adapter of the chosen kind for what this process serves."""
    return kubernetes_adapter() if on_kubernetes() else served_adapter()


def shared_runtime_adapter(engine_name: str = "") -> RuntimeAdapter:
    """Return the one adapter of this process, for calls of which there are many.

    Of several engines the one of that name; raises as ``shared_adapter`` does.
    """
    return kubernetes_adapter() if on_kubernetes() else shared_adapter(engine_name)


def engine_facts() -> EngineFacts:
    """Return what the engine that this process serves says of itself.

    With Kubernetes it is called what the cluster is called; the rest is of the engine that builds.
    """
    facts = served_adapter().facts()
    return replace(facts, engine_id=kubernetes_adapter().engine_id()) if on_kubernetes() else facts
