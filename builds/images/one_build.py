"""The programs of one build: what they share, and how each is logged and judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builds.images.context import BuildError
from builds.images.docker_program import DockerProgram
from builds.images.program_output import BuildOutput, ProgramLog
from builds.images.step_limits import StepLimits
from controlplane.subprocesses import ProcessResult

Check = Callable[[ProcessResult, str, BuildOutput], None]
"""Raises what a finished program of a kind stands for, unless it stands for success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBuild:
    """Runs the programs of one build until ``deadline``, a time of the monotonic clock."""

    docker: DockerProgram
    limits: StepLimits | None
    context: Path
    deadline: float
    log: ProgramLog
    cancelled: threading.Event
    new_output: Callable[[str], BuildOutput]
    check: Check

    def image_of(self, dockerfile: str, options: Sequence[str], *, network: str) -> str:
        """Build what a Dockerfile says and return the image's id."""
        iidfile = self.context.parent / "image.id"
        iidfile.unlink(missing_ok=True)
        (self.context / "Dockerfile").write_text(dockerfile)
        buildkit = self.limits is None and self.docker.command().buildkit
        argv = ["build", *options, "--iidfile", str(iidfile), "--network", network, "--force-rm"]
        argv += self.limits.options() if self.limits else []
        argv += ["--progress", "plain"] if buildkit else []
        self._run([*argv, str(self.context)], buildkit=buildkit)
        try:
            return iidfile.read_text().strip()
        except OSError as error:
            raise BuildError(
                "build-command-failed", "The builder succeeded but did not report an image."
            ) from error

    def program(self, *arguments: str, step: str) -> ProcessResult:
        """Run the engine's command line for a step of ours, which is told when it fails."""
        return self._run(arguments, step=step)

    def _run(self, argv: Sequence[str], *, step: str = "", buildkit: bool = False) -> ProcessResult:
        watched = self.new_output(step)
        result = self.docker.logged(
            *argv,
            log=self.log,
            place=self.context.parent,
            watched=watched,
            timeout=max(0.1, self.deadline - time.monotonic()),
            cancelled=self.cancelled,
            buildkit=buildkit,
        )
        self.check(result, "build", watched)
        return result
