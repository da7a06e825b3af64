"""The engine's command line as a subprocess: which program, its environment, and what it says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from builds.images.command_lines import DockerCommand, find_docker
from builds.images.context import BuildError
from builds.images.program_output import BuildOutput, ProgramLog
from controlplane.subprocesses import ProcessResult, ProcessStartError, run_process

logger = structlog.get_logger(__name__)

SHORT_SECONDS = 30.0
"""The time limit of a command that moves no image."""


class DockerProgram:
    """``docker`` as the operator has it; may be shared by threads. Times are seconds.

    ``name`` is a path, or a name: then the first program of that name on ``PATH`` that can use
    BuildKit. Every method raises :class:`BuildError` when the program cannot be started.
    """

    def __init__(self, name: str, host: str) -> None:
        self._name = name
        self.host = host
        self._command: DockerCommand | None = None
        self._finding = threading.Lock()

    def command(self) -> DockerCommand:
        """Find out once which program to use and whether it has BuildKit."""
        with self._finding:
            if self._command is None:
                try:
                    docker, certain = find_docker(self._name, self._environment())
                except OSError as error:
                    raise BuildError(
                        "build-write-context-failed",
                        f"The temporary folder takes nothing: {error.strerror or 'unknown error'}.",
                    ) from error
                if not certain:
                    return docker
                self._command = docker
                logger.info("builder_chosen", buildkit=docker.buildkit)
            return self._command

    def run(
        self,
        *arguments: str,
        timeout: float,
        streams: Callable[[str, bytes], None] | None = None,
        cancelled: threading.Event | None = None,
        config: Path | None = None,
    ) -> ProcessResult:
        """Run the command line; ``config`` replaces the operator's folder of settings."""
        docker = self.command()
        env = self._environment(config) | {"DOCKER_BUILDKIT": "1" if docker.buildkit else "0"}
        try:
            return run_process(
                [docker.program, *arguments],
                env=env,
                timeout=timeout,
                streams=streams,
                cancelled=cancelled,
                stdout_limit=1024 * 1024,
                grace=5.0,
            )
        except ProcessStartError as error:
            raise BuildError("build-command-failed", str(error)) from None

    def logged(
        self,
        *arguments: str,
        log: ProgramLog,
        place: Path,
        watched: BuildOutput,
        timeout: float,
        cancelled: threading.Event,
        config: Path | None = None,
    ) -> ProcessResult:
        """Run the command line with its output handed on; paths in ``place`` are shown relative."""
        shown = [word.removeprefix(f"{place}/") for word in arguments]
        output = log.started(f"docker {arguments[0]}", ["docker", *shown])

        def take(stream: str, chunk: bytes) -> None:
            watched.feed(chunk)
            output.feed(stream, chunk)

        try:
            result = self.run(
                *arguments, timeout=timeout, streams=take, cancelled=cancelled, config=config
            )
        except BaseException:
            output.ended(None)
            raise
        watched.close()
        output.ended(result)
        return result

    def image_id(self, reference: str) -> ProcessResult:
        """Ask for the id of an image, which is all that is printed."""
        inspect = ("image", "inspect", "--format", "{{.Id}}", reference)
        return self.run(*inspect, timeout=SHORT_SECONDS)

    def require_engine(self) -> None:
        """Raise ``adapter-unavailable`` when nobody answers: the program then fails of that."""
        version = ("version", "--format", "{{.Server.Version}}")
        if not self.run(*version, timeout=SHORT_SECONDS).ok:
            raise BuildError("adapter-unavailable", "The Docker Engine does not answer.")

    def untag(self, name: str) -> None:
        """Take a name off an image; the image goes with its last name, cached layers stay.

        By force, because a container may run from it: another worker was quicker with the same job.
        """
        try:
            result = self.run("rmi", "--force", "--no-prune", name, timeout=SHORT_SECONDS)
        except BuildError:
            logger.warning("image_name_not_removed", name=name)
            return
        if not result.ok and b"No such image" not in result.tail:
            logger.warning("image_name_not_removed", name=name, ending=result.ending)

    def _environment(self, config: Path | None = None) -> dict[str, str]:
        """Return the environment of the command line: the operator's own access to the engine."""
        passed = ("PATH", "HOME", "SSH_AUTH_SOCK", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
        env = {name: os.environ[name] for name in passed if name in os.environ}
        env |= {"DOCKER_HOST": self.host, "LC_ALL": "C", "DOCKER_CLI_HINTS": "false"}
        if config is not None:
            env["DOCKER_CONFIG"] = str(config)
        elif "DOCKER_CONFIG" in os.environ:
            env["DOCKER_CONFIG"] = os.environ["DOCKER_CONFIG"]
        return env
