"""The engine's command line as a subprocess: which program, its environment, and what it says.

Whether a program can use BuildKit is found out by a tiny build. Asking for versions does not tell:
a client before 23 has BuildKit built in, a later one needs a plug-in that may be missing or broken,
and the engine has its own say.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from builds.images.context import BuildError
from builds.images.program_output import BuildOutput, ProgramLog
from controlplane.folders import scratch_folder
from controlplane.subprocesses import ProcessResult, ProcessStartError, run_process
from workspaces.runtimes.docker.build.build_steps import StepLimits

logger = structlog.get_logger(__name__)

SHORT_SECONDS = 30.0
"""The time limit of a command that moves no image."""

_PROBE_SECONDS = 60.0
_ROOM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class DockerCommand:
    """A program and the builder it can use."""

    program: str
    buildkit: bool


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
                        f"The temporary folder cannot be written: "
                        f"{error.strerror or 'unknown error'}.",
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
        buildkit: bool = True,
    ) -> ProcessResult:
        """Run the command line; ``config`` replaces the operator's folder of settings.

        ``buildkit``: with BuildKit where there is one, else with the classic builder.
        """
        docker = self.command()
        chosen = "1" if docker.buildkit and buildkit else "0"
        env = self._environment(config) | {"DOCKER_BUILDKIT": chosen}
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
        buildkit: bool = True,
    ) -> ProcessResult:
        """Run the command line with its output handed on; paths in ``place`` are shown relative."""
        shown = [word.removeprefix(f"{place}/") for word in arguments]
        output = log.started(f"docker {arguments[0]}", ["docker", *shown])

        def take(stream: str, chunk: bytes) -> None:
            watched.feed(chunk)
            output.feed(stream, chunk)

        try:
            result = self.run(
                *arguments,
                timeout=timeout,
                streams=take,
                cancelled=cancelled,
                config=config,
                buildkit=buildkit,
            )
        except BuildError:
            output.not_started()
            raise
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

    def remove_container(self, name: str) -> None:
        """End and remove a container, if there is one of that name."""
        try:
            result = self.run("rm", "--force", "--volumes", name, timeout=SHORT_SECONDS)
        except BuildError:
            logger.warning("container_not_removed", name=name)
            return
        if not result.ok and b"No such container" not in result.tail:
            logger.warning("container_not_removed", name=name, ending=result.ending)

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
        iidfile = self.place / "image.id"
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

    @property
    def place(self) -> Path:
        """The folder that the context is in, which goes with the build."""
        return self.context.parent

    def remove_container(self, name: str) -> None:
        """End and remove a container, if there is one of that name."""
        self.docker.remove_container(name)

    def program(self, *arguments: str, step: str) -> ProcessResult:
        """Run the engine's command line for a step of ours, which is told when it fails."""
        # Not with the operator's settings: `docker run` puts the proxies in them, passwords and
        # all, into the container's environment, and `docker commit` that into the image.
        settings = self.place / "no-settings"
        settings.mkdir(mode=0o700, exist_ok=True)
        return self._run(arguments, step=step, config=settings)

    def _run(
        self,
        argv: Sequence[str],
        *,
        step: str = "",
        buildkit: bool = False,
        config: Path | None = None,
    ) -> ProcessResult:
        watched = self.new_output(step)
        result = self.docker.logged(
            *argv,
            log=self.log,
            place=self.place,
            watched=watched,
            timeout=max(0.1, self.deadline - time.monotonic()),
            cancelled=self.cancelled,
            config=config,
            buildkit=buildkit,
        )
        self.check(result, "build", watched)
        return result


def find_docker(name: str, env: Mapping[str, str]) -> tuple[DockerCommand, bool]:
    """Return the first program called ``name`` that builds with BuildKit, else the first of all.

    The second value says whether the answer is certain: it is not while no engine answers. Raises
    ``OSError`` when the temporary folder takes nothing, so that nothing can be found out.
    """
    programs = [name] if "/" in name else _on_path(name, env.get("PATH", os.defpath))
    for program in programs:
        if _has_buildkit(program, env):
            return DockerCommand(program, buildkit=True), True
    first = programs[0] if programs else name
    return DockerCommand(first, buildkit=False), _reaches_engine(first, env)


def _on_path(name: str, path: str) -> list[str]:
    by_file: dict[str, str] = {}
    for folder in path.split(os.pathsep):
        program = shutil.which(name, path=folder) if folder else None
        if program is not None:
            by_file.setdefault(os.path.realpath(program), program)
    return list(by_file.values())


def _has_buildkit(program: str, env: Mapping[str, str]) -> bool:
    """Build nothing to speak of into a folder: the classic builder cannot, and no image stays."""
    with scratch_folder("probe") as place:
        context = place / "context"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        result = place / "result"
        argv = [program, "build", "--output", f"type=local,dest={result}", str(context)]
        if _succeeds(argv, {**env, "DOCKER_BUILDKIT": "1"}) and (result / "Dockerfile").exists():
            return True
        # The same fails on a full disk, which says nothing of the builder and raises here.
        (place / "room").write_bytes(bytes(_ROOM_BYTES))
        return False


def _reaches_engine(program: str, env: Mapping[str, str]) -> bool:
    return _succeeds([program, "version", "--format", "{{.Server.Version}}"], env)


def _succeeds(argv: list[str], env: Mapping[str, str]) -> bool:
    try:
        return run_process(argv, env=env, timeout=_PROBE_SECONDS).ok
    except ProcessStartError:
        return False
