"""What has to be known about a distribution to install packages and build images of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OsFamily:
    """One distribution, as data."""

    name: str
    title: str
    """Its name for people."""
    package_manager: Literal["apt", "dnf", "pacman", "apk"]
    libc: Literal["glibc", "musl"]
    base_packages: tuple[str, ...]
    """In every image, whatever the blueprint says: what the agent, the harnesses' installers and
    people at a terminal need, and what SSH clients start in a workspace: an SFTP server, ``scp``
    and ``rsync``. They are one constant layer that all blueprints share."""
    anchors: str
    """The folder whose certificates the system's tools add to the trusted ones."""
    certificates: str
    """The file of all trusted certificates, which those tools write."""
    shells: Mapping[str, str]
    """The path of each login shell."""
    package_name: re.Pattern[str]
    """What the package manager takes for one plain package name, and for nothing else."""
    lower_case_names: bool
    """Whether the distribution has no package with a capital letter."""
    pin: str | None
    """How name and version become one word; None where old versions are not kept."""
    dotfiles_packages: Mapping[str, tuple[str, ...]]
    """Packages of each dotfiles manager. One that is missing here is left to the agent's reader."""
