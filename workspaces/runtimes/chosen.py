"""The adapter that launches workspaces, as ``DEFAULT_RUNTIME_ADAPTER`` says.

Images are built by the Docker Engine in any case: :mod:`workspaces.runtimes.configured` has it.
"""

from __future__ import annotations

from workspaces.runtimes.base import RuntimeAdapter
from workspaces.runtimes.configured import configured_adapter, shared_adapter
from workspaces.runtimes.configured_cluster import kubernetes_adapter, on_kubernetes


def runtime_adapter() -> RuntimeAdapter:
    """Return an adapter of the chosen kind, with every setting applied."""
    return kubernetes_adapter() if on_kubernetes() else configured_adapter()


def shared_runtime_adapter() -> RuntimeAdapter:
    """Return the one adapter of this process, for calls of which there are many."""
    return kubernetes_adapter() if on_kubernetes() else shared_adapter()
