"""What a plan is: everything that decides an image, as values; and the steps that make it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from controlplane.errors import JobError

PLAN_FORMAT: Final = 1
"""Part of every fingerprint. Raise it when the same plan must give another image, for example
after a change of what the compiler puts into the build context."""

CUSTOM_SCRIPT: Final = "install/custom-harness.bash"
"""In the context: the installation of a harness that the blueprint's author wrote, or nothing."""

Reach = Literal["nothing", "packages", "policy"]
"""What a step reaches: the sources of packages, or what the author's own network policy allows."""

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
class StepFiles:
    """Files of the context for the image, owned by root; of an archive what is in it, as it is.

    ``destination`` is an absolute path, with a ``/`` at its end that of a folder.
    """

    names: tuple[str, ...]
    destination: str
    is_archive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep:
    """A part of the Dockerfile that ends with a program. What is empty stays as it was."""

    user: str = ""
    working_directory: str = ""
    environment: tuple[str, ...] = ()
    """Each as ``NAME=value``."""
    files: tuple[StepFiles, ...] = ()
    argv: tuple[str, ...] = ()
    """Empty: runs nothing."""
    reach: Reach = "nothing"
    changes: tuple[str, ...] = ()
    """Lines of a Dockerfile that change what the step has become."""


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

    @property
    def has_custom_installation(self) -> bool:
        """Whether the blueprint's author brings an installation of a harness."""
        return not self._is_empty(CUSTOM_SCRIPT)

    def steps(self) -> tuple[BuildStep, ...]:
        """Return what the Dockerfile says, one step for each program and one for what is left.

        Programs that would find nothing to do are left out.
        """
        done: list[BuildStep] = []
        step = BuildStep()
        for line in self.dockerfile.splitlines():
            word, _, rest = line.partition(" ")
            if word == "RUN":
                argv = tuple(json.loads(rest))
                reach, file = _reach_and_input(argv)
                if file is None or not self._is_empty(f"install/{file}"):
                    done.append(replace(step, argv=argv, reach=reach))
                    step = BuildStep()
            elif word not in {"", "FROM"}:
                step = replace(step, **_with_line(step, word, rest))
        if done and step == BuildStep(changes=step.changes):
            done[-1] = replace(done[-1], changes=step.changes)
        else:
            done.append(step)
        return tuple(done)

    def _is_empty(self, path: str) -> bool:
        return not any(file.path == path and file.content for file in self.files)

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


def _reach_and_input(argv: tuple[str, ...]) -> tuple[Reach, str | None]:
    """Return what a program reaches, and the file that says what it has to do, if there is one."""
    match [PurePosixPath(word).name for word in argv]:
        case [_, "packages.sh", names]:
            return "packages", names
        case [_, "harness.sh"]:
            return "packages", "npm.list"
        case [_, "custom.sh"]:
            return "policy", PurePosixPath(CUSTOM_SCRIPT).name
    return "nothing", None


def _with_line(step: BuildStep, word: str, rest: str) -> dict[str, Any]:
    """Return the members of a step that a line of a Dockerfile changes."""
    match word:
        case "USER":
            return {"user": rest}
        case "WORKDIR":
            return {"working_directory": rest}
        case "ENV":
            return {"environment": (*step.environment, rest)}
        case "COPY" | "ADD":
            *names, destination = rest.split()
            files = StepFiles(tuple(names), destination, is_archive=word == "ADD")
            return {"files": (*step.files, files)}
        case "ENTRYPOINT":
            return {"changes": (*step.changes, f"{word} {rest}")}
    raise ValueError(f"no step of a plan has the instruction {word}")
