"""What a plan is: everything that decides an image, as values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Final, Literal

from controlplane.errors import JobError

PLAN_FORMAT: Final = 1
"""Part of every fingerprint. Raise it when the same plan must give another image, for example
after a change of what the compiler puts into the build context."""

UnsupportedReason = Literal[
    "unsupported-os",
    "unsupported-harness",
    "unsupported-package",
    "unsupported-runtime-requirement",
]


class UnsupportedError(JobError):
    """The planner cannot build this blueprint; ``code`` is one of the specification's reasons."""

    def __init__(self, reason: UnsupportedReason, message: str) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file of the build context: path relative to the context, content and permission bits."""

    path: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A git repository to check out into the image, as a checkout owned by the plan's user.

    ``ref`` is None for the repository's default branch; ``destination`` is an absolute path.
    """

    id: str
    purpose: Literal["workspace", "dotfiles"]
    url: str
    ref: str | None
    destination: str


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """How to build one image. Made by :func:`builds.planner.plan`, carried out by the compiler.

    The build context holds ``Dockerfile`` (from :attr:`dockerfile`), :attr:`files`, and what only
    the worker has: ``extra-ca.crt``, ``sources.tar`` and ``svc-agent``.
    """

    os_family: str
    base_image: str
    dockerfile: str
    files: tuple[PlanFile, ...]
    sources: tuple[PlannedSource, ...]
    working_directory: str
    harness_command: tuple[str, ...]
    """What starts the harness in the running workspace; empty for the shell."""
    user: str
    uid: int
    gid: int
    home: str
    shell: str
    """Path of the login shell."""

    def fingerprint(
        self,
        commits: Mapping[str, str],
        base_image_id: str,
        agent_digest: str,
        extra_ca: bytes,
        network: Mapping[str, object] | None = None,
    ) -> str:
        """Return the plan hash: SHA-256 (hex) over everything that decides the image.

        Two plans with the same hash give interchangeable images. What only matters at launch
        (environment, lifecycle steps, the harness's command) is not part of it.

        :param commits: the resolved commit of each of :attr:`sources`, by source id.
        :param base_image_id: the content address of :attr:`base_image` in the engine.
        :param network: what the author's own steps may reach, as JSON; None where it is as always,
            or where there are no such steps.
        :raises KeyError: a source has no commit.
        """
        deciding = {
            "format": PLAN_FORMAT,
            "osFamily": self.os_family,
            "baseImage": [self.base_image, base_image_id],
            "dockerfile": self.dockerfile,
            "files": sorted(
                [file.path, file.mode, hashlib.sha256(file.content).hexdigest()]
                for file in self.files
            ),
            "sources": [[*astuple(source), commits[source.id]] for source in self.sources],
            "workingDirectory": self.working_directory,
            "user": [self.user, self.uid, self.gid, self.home, self.shell],
            "agent": agent_digest,
            "extraCa": hashlib.sha256(extra_ca).hexdigest(),
            **({} if network is None else {"network": network}),
        }
        canonical = json.dumps(deciding, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()
