"""Carrying out the steps of one build, each in a container, as far as none was carried out before.

An image that a step has become is labelled with a key of all that decided it, and found again by
that key and its parent. Nothing else is a cache, so a build that begins like another goes on where
the other one differs.
"""

from __future__ import annotations

import hashlib
import io
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from builds.images.context import open_archive
from builds.images.docker_program import DockerProgram, ProgramLog, RedactedTail
from builds.planner import BuildStep, StepFiles
from controlplane.subprocesses import ProcessResult
from workspaces.runtimes.docker.build.build_steps import (
    NO_NETWORK,
    StepContainers,
    StepRequest,
    capabilities_of,
)
from workspaces.runtimes.docker.images import STEP_LABEL, ImageList
from workspaces.runtimes.docker.seccomp import profile

_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Network:
    """A network for steps: ``open`` makes it for a block and says what it is called.

    ``decides`` is what its steps reach, as far as that decides what becomes of them.
    """

    open: Callable[[], AbstractContextManager[str]]
    asks_proxy: bool = False
    decides: str = ""


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """Carries out the steps of one build until ``deadline``, a time of the monotonic clock.

    ``name`` begins the names of its containers, which have ``labels``, by which an uninstall finds
    them; the image gets these, too. ``packages`` is the network of steps that install packages,
    ``policy`` that of what the blueprint's author wrote; None: it has none. ``require_time`` raises
    when the build was cancelled or its time is over, ``require_success`` what the end of a program
    stands for, unless it stands for success.
    """

    docker: DockerProgram
    containers: StepContainers
    images: ImageList
    context: Path
    name: str
    labels: Mapping[str, str]
    packages: Network
    policy: Network | None
    deadline: float
    log: ProgramLog
    cancelled: threading.Event
    new_tail: Callable[[], RedactedTail]
    require_time: Callable[[], None]
    require_success: Callable[[ProcessResult, RedactedTail, BuildStep], None]
    _open: Network | None = field(default=None, init=False)
    _opened: str = field(default="", init=False)
    _held: ExitStack = field(default_factory=ExitStack, init=False)

    def carry_out(self, base: str, steps: Sequence[BuildStep]) -> str:
        """Return the id of the image that the steps make of an image."""
        made, image = self.images.made_by_steps(), base
        with self._held:
            for number, step in enumerate(steps, 1):
                labels = self.labels if number == len(steps) else {}
                key = self._key(step, labels)
                known = made.get((image, key))
                image = known or self._step(image, step, number, {**labels, STEP_LABEL: key})
        return image

    def _step(self, image: str, step: BuildStep, number: int, labels: Mapping[str, str]) -> str:
        self.require_time()
        container = f"{self.name}-{number}"
        try:
            self._create(container, image, step)
            for files in step.files:
                with open_archive(self.context, files) as archive:
                    self.containers.put(container, self._pieces(archive))
            if step.argv:
                self._run(container, step, number)
            # Other installations take it again: it is not of this one, as its container is.
            return self._commit(container, step, {**dict.fromkeys(self.labels, ""), **labels})
        finally:
            self.containers.remove(container)

    def _create(self, container: str, image: str, step: BuildStep) -> None:
        network = self._network_of(step)
        request = StepRequest(
            image=image,
            argv=step.argv,
            user=step.user,
            working_directory=step.working_directory,
            environment=step.environment,
            network=NO_NETWORK if network is None else self._name_of(network),
            asks_proxy=network is not None and network.asks_proxy,
            capabilities=capabilities_of(packages=step.reach == "packages"),
            labels=self.labels,
        )
        self.containers.create(container, request)

    def _run(self, container: str, step: BuildStep, number: int) -> None:
        watched = self.new_tail()
        result = self.docker.logged(
            *("start", "--attach", container),
            told=self.log.started(f"step {number}", step.argv),
            watched=watched,
            timeout=self._seconds(),
            cancelled=self.cancelled,
            # Any other one would be handed on to the step. Its container is ended by removing it.
            stop_signal=signal.SIGKILL,
        )
        self.require_success(result, watched, step)

    def _commit(self, container: str, step: BuildStep, labels: Mapping[str, str]) -> str:
        told = [f"LABEL {name}={json.dumps(value)}" for name, value in sorted(labels.items())]
        changes = [word for line in (*step.changes, *told) for word in ("--change", line)]
        result = self.docker.run(
            *("commit", *changes, container), timeout=self._seconds(), cancelled=self.cancelled
        )
        watched = self.new_tail()
        watched.feed(result.tail)
        watched.close()
        self.require_success(result, watched, step)
        return result.stdout.decode("ascii", "replace").strip()

    def _network_of(self, step: BuildStep) -> Network | None:
        return {"nothing": None, "packages": self.packages, "policy": self.policy}[step.reach]

    def _name_of(self, network: Network) -> str:
        """Return the name of a network, which is there until another one is asked for."""
        if network is not self._open:
            self._held.close()
            self._opened = self._held.enter_context(network.open())
            self._open = network
        return self._opened

    def _seconds(self) -> float:
        return max(0.1, self.deadline - time.monotonic())

    def _pieces(self, archive: io.BytesIO | io.BufferedReader) -> Iterator[bytes]:
        while piece := archive.read(_PIECE_BYTES):
            self.require_time()
            yield piece

    def _key(self, step: BuildStep, labels: Mapping[str, str]) -> str:
        network = self._network_of(step)
        decides = [
            *(step.user, step.working_directory, step.environment, step.argv, step.changes),
            [self._digest(files) for files in step.files],
            None if network is None else network.decides,
            capabilities_of(packages=step.reach == "packages"),
            profile(),
            labels,
        ]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def _digest(self, files: StepFiles) -> str:
        with open_archive(self.context, files) as archive:
            return hashlib.file_digest(archive, "sha256").hexdigest()
