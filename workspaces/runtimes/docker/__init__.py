"""Workspaces as containers of a Docker Engine: the only place that imports the Docker SDK.

``adapter`` is the class that the product uses, ``launch`` one launch from image to ready,
``engine_api`` the calls to the Docker Engine with their limits and errors, ``networks`` the choice
of a subnet.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workspaces.runtimes.docker.adapter import DockerAdapter

__all__ = ["DockerAdapter"]


def __getattr__(name: str) -> Any:
    # Gateways and proxies need modules of this package, and not the SDK that the adapter loads.
    if name != "DockerAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workspaces.runtimes.docker.adapter import DockerAdapter

    return DockerAdapter
