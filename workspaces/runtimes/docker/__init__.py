"""Workspaces as containers of a Docker Engine: the only place that imports the Docker SDK.

``adapter`` is the class that the product uses, ``launch`` one launch from image to ready,
``engine`` the calls to the Docker Engine with their limits and errors, ``networks`` the choice of a
subnet.
"""

from workspaces.runtimes.docker.adapter import DockerAdapter

__all__ = ["DockerAdapter"]
