"""The engine's command line as a subprocess: its environment, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from builds.images.context import BuildError
from controlplane.security.redaction import Redactor
from controlplane.subprocesses import ProcessResult, ProcessStartError, Tail, run_process

logger = structlog.get_logger(__name__)

SHORT_SECONDS = 30.0
"""The time limit of a command that moves no image."""


class ProgramOutput(Protocol):
    """Takes what one program prints, and how it ends."""

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take the next bytes of ``stdout`` or ``stderr``; what it raises ends the program."""

    def ended(self, result: ProcessResult | None) -> None:
        """Take how it ended; None when that is not known."""

    def not_started(self) -> None:
        """Take that it never ran."""


class ProgramLog(Protocol):
    """Takes what the programs of a build print, as they print it."""

    def started(self, name: str, argv: Sequence[str]) -> ProgramOutput:
        """Take notice of a program that is started now."""


class RedactedTail:
    """Keeps the end of what a program prints, without the secrets in it."""

    def __init__(self, secrets: Iterable[str], limit: int) -> None:
        self._redactor = Redactor(secrets)
        self._kept = Tail(limit)

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of output."""
        self._kept.feed(self._redactor.feed(chunk))

    def close(self) -> None:
        """Take what was held back; the output is over."""
        self._kept.feed(self._redactor.flush())

    def bytes(self) -> bytes:
        """Return the end of the redacted output."""
        return self._kept.bytes()


class DockerProgram:
    """``docker`` as the operator has it; may be shared by threads. Times are seconds.

    ``name`` is a path, or a name: then the first program of that name on ``PATH``. Every method
    raises :class:`BuildError` when the program cannot be started.
    """

    def __init__(self, name: str, host: str) -> None:
        self._name = name
        self.host = host

    def run(
        self,
        *arguments: str,
        timeout: float,
        streams: Callable[[str, bytes], None] | None = None,
        cancelled: threading.Event | None = None,
        config: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> ProcessResult:
        """Run the command line; ``config`` replaces the operator's folder of settings.

        ``stop_signal`` ends it when it was cancelled or takes too long.
        """
        try:
            return run_process(
                [self._name, *arguments],
                env=self._environment(config),
                timeout=timeout,
                streams=streams,
                cancelled=cancelled,
                stdout_limit=1024 * 1024,
                stop_signal=stop_signal,
            )
        except ProcessStartError as error:
            raise BuildError("build-command-failed", str(error)) from None

    def logged(
        self,
        *arguments: str,
        told: ProgramOutput,
        watched: RedactedTail,
        timeout: float,
        cancelled: threading.Event,
        config: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> ProcessResult:
        """Run the command line with its output, and its end, handed on."""

        def take(stream: str, chunk: bytes) -> None:
            watched.feed(chunk)
            told.feed(stream, chunk)

        try:
            result = self.run(
                *arguments,
                timeout=timeout,
                streams=take,
                cancelled=cancelled,
                config=config,
                stop_signal=stop_signal,
            )
        except BuildError:
            told.not_started()
            raise
        except BaseException:
            told.ended(None)
            raise
        watched.close()
        told.ended(result)
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
        """Take a name off an image; the image goes with its last name, those of its steps stay.

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
