"""The steps of a build that run what a blueprint's author wrote, or what that may have changed.

A builder gives each step the capabilities that the engine gives every container, raw sockets and
device files among them, and no limit of processes from its beginning. These steps run in containers
of our own instead, which may do what a workspace may; their results are committed, one after the
other, as a builder does it. What copies files and names things is still left to the builder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from controlplane.subprocesses import ProcessResult
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.creation import (
    AGENT_CAPABILITIES,
    ASKED_NAME_SERVER,
    SUDO_CAPABILITIES,
)
from workspaces.runtimes.docker.images import ImageList
from workspaces.runtimes.docker.seccomp import profile

STEP_NAME = "svc-step"
"""How the names of the containers begin."""
STEP_LABEL = "svc.step"
"""What of an image was made of; an image that was made of that one has it too."""
_CAPABILITIES = (*AGENT_CAPABILITIES, *SUDO_CAPABILITIES)
_RUN = "RUN "
_CPU_PERIOD = 100_000


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What each step of a build may use, and the network it is in.

    ``network`` makes one for a build, which is there for the block; its name is the result. What it
    is called with is None, or makes known that the network is under an egress policy: then it is
    called with the name of the bridge.
    """

    network: Callable[[Callable[[str], None] | None], AbstractContextManager[str]]
    memory_mb: int
    cpus: float
    pids: int

    def options(self) -> list[str]:
        """Return the options that the classic builder takes; BuildKit knows nothing of the kind."""
        return [
            *("--memory", f"{self.memory_mb}m", "--memory-swap", f"{self.memory_mb}m"),
            *("--cpu-period", str(_CPU_PERIOD), "--cpu-quota", str(int(self.cpus * _CPU_PERIOD))),
        ]

    def container_options(self) -> list[str]:
        """Return those of a container of our own, which can have all of them."""
        return [*self.options(), "--pids-limit", str(self.pids)]


class Build(Protocol):
    """What runs the programs of one build, until its time is over."""

    @property
    def limits(self) -> StepLimits | None:
        """What each step may use; None: the builder runs all of them, without limits."""

    @property
    def place(self) -> Path:
        """A folder that is there as long as the build."""

    def image_of(self, dockerfile: str, options: Sequence[str], *, network: str) -> str:
        """Have the builder do what a Dockerfile says and return the image's id."""

    def program(self, *arguments: str, step: str) -> ProcessResult:
        """Run the engine's command line for a step, which is told when it fails."""

    def remove_container(self, name: str) -> None:
        """End and remove a container, if there is one of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorSteps:
    """Carries out an author's part of the Dockerfile of a build, in one network.

    ``name`` begins the names of its containers, which have ``labels``, by which an uninstall finds
    them; ``reach`` says what they reach: what was made before is taken again for the same only.
    Where steps have no limits, the builder runs them.
    """

    build: Build
    images: ImageList
    name: str
    labels: Mapping[str, str]
    network: str
    asks_proxy: bool
    reach: str

    def carry_out(self, base: str, dockerfile: str, options: Sequence[str]) -> str:
        """Return the id of the image that the lines make of ``base``; ``options`` are the last's.

        A ``RUN`` is in its form with brackets.
        """
        limits = self.build.limits
        if limits is None:
            told = hashlib.sha256(self.reach.encode()).hexdigest()
            lines = f"FROM {base}\nARG SVC_REACH={told[:32]}\n{dockerfile}"
            return self.build.image_of(lines, options, network=self.network)
        image, waiting, number = base, list[str](), 0
        for line in dockerfile.splitlines():
            if not line.startswith(_RUN):
                waiting.append(line)
                continue
            if any(waiting):
                image = self._copied(image, waiting, [])
                waiting.clear()
            number += 1
            image = self._step(image, json.loads(line.removeprefix(_RUN)), number, limits)
        return self._copied(image, waiting, options)

    def _copied(self, image: str, lines: Sequence[str], options: Sequence[str]) -> str:
        """Have the builder carry out lines that run nothing."""
        return self.build.image_of(
            "\n".join([f"FROM {image}", *lines, ""]), options, network="none"
        )

    def _step(self, image: str, argv: Sequence[str], number: int, limits: StepLimits) -> str:
        made_of = [image, argv, self.reach, _CAPABILITIES, profile()]
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        known = self._made_before(image, key)
        if known is not None:
            return known
        container = f"{self.name}-{number}"
        run = partial(self.build.program, step=_RUN + json.dumps(argv))
        try:
            run("run", *self._options(container), *limits.container_options(), image, *argv)
            change = f"LABEL {STEP_LABEL}={key}"
            committed = run("commit", "--change", change, container)
        finally:
            self.build.remove_container(container)
        return committed.stdout.decode("ascii", "replace").strip()

    def _made_before(self, image: str, key: str) -> str | None:
        try:
            return self.images.child_of(image, {STEP_LABEL: key})
        except LaunchError:
            return None  # whoever runs the step is told what the engine lacks

    def _options(self, container: str) -> list[str]:
        rules = self.build.place / "seccomp.json"
        rules.write_text(profile())
        return [
            *("--name", container, "--network", self.network, "--entrypoint", ""),
            *(word for each in self.labels.items() for word in ("--label", "=".join(each))),
            *("--cap-drop", "ALL"),
            *(word for name in _CAPABILITIES for word in ("--cap-add", name)),
            *("--security-opt", f"seccomp={rules}"),
            # It prints to us alone. Its signals are ours: it is ended by removing it.
            *("--log-driver", "none", "--sig-proxy=false"),
            *(("--dns", ASKED_NAME_SERVER) if self.asks_proxy else ()),
        ]
