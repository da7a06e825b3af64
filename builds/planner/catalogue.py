"""What this installation can build and run: the operator's side of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.oci_names import is_image
from workspaces.harnesses import HARNESSES, Harness


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Base images by OS family, harnesses, and what the runtime adapters can do.

    A family without base image is not offered.

    :raises ValueError: a base image is not a reference; it becomes a line of the Dockerfile.
    """

    base_images: Mapping[str, str]
    default_family: str = "debian"
    harnesses: Mapping[str, Harness] = field(default_factory=lambda: HARNESSES)
    runtime_families: frozenset[str] = frozenset({"docker"})
    oci_runtimes: frozenset[str] = frozenset({"runc", "runsc"})

    def __post_init__(self) -> None:
        for family, reference in self.base_images.items():
            if not is_image(reference):
                raise ValueError(f"the base image of {family} is not an image reference")
