"""From a plan to an image in the registry: ``docker build``, ``docker push``, the digest.

The engine's command line is run as a subprocess, because how it ends is the contract for build
failures: an exit code other than 0, or a signal (specification, "Errors"). The builder is BuildKit
where engine and command line have it, otherwise the classic one. Promises, in every outcome: a name
for the image that no other job has, output that is redacted and bounded, a time limit, an end soon
after cancellation, and nothing left behind but the engine's layer cache.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

import structlog

from builds.images.command_lines import DockerCommand, find_docker
from builds.images.context import BuildError, write_context
from builds.images.program_output import BuildOutput, ProgramLog
from builds.images.work_folders import sweep_leftovers, workplace
from builds.planner import ImagePlan
from controlplane.oci_names import is_repository, is_tag
from controlplane.security.redaction import bounded_tail
from controlplane.subprocesses import ProcessResult, ProcessStartError, run_process
from registries.client import RegistryClient, RegistryError
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.images import EngineImages, ListedImage

__all__ = ["BuildError", "BuiltImage", "Compiler", "PublishedImage", "sweep_leftovers"]

logger = structlog.get_logger(__name__)

LOCAL_REPOSITORY = "svc-build"
_DIGEST = re.compile(rb"digest: (sha256:[0-9a-f]{64}) size: ")
_CLEANUP_SECONDS = 30.0
_BASE_IMAGE_SECONDS = 30.0
"""How long the id of a base image is remembered: asking costs more than reusing an image does.
:meth:`Compiler.look_at_base_images` asks in the meantime, when no job waits for the answer."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image in the engine under a name that only its job uses."""

    image_id: str
    local_tag: str

    @property
    def owner(self) -> tuple[UUID, int]:
        """The job and the attempt count that the image was built for."""
        job, _, count = self.local_tag.partition("/")[2].partition(":")
        return UUID(job), int(count)


@dataclass(frozen=True, slots=True)
class PulledImage:
    """An image of the registry that the engine holds to launch workspaces from."""

    repository: str
    digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PublishedImage:
    """An image in the registry; ``digest_reference`` always means these bytes."""

    reference: str
    digest_reference: str
    digest: str


def repository_lock(repository: str) -> str:
    """Return the name of the lock that publishing shares and removing images holds alone."""
    return f"images:{repository}"


class PushLock(Protocol):
    """Keeps pushes of one name apart that share an engine."""

    def __call__(
        self, name: str, *, timeout: float, cancelled: threading.Event
    ) -> AbstractContextManager[None]:
        """Hold the lock in the block; entering raises ``TimeoutError`` after ``timeout``."""


def _no_lock(
    name: str, *, timeout: float, cancelled: threading.Event
) -> AbstractContextManager[None]:
    return nullcontext()


def _read_image_id(iidfile: Path) -> str:
    try:
        return iidfile.read_text().strip()
    except OSError as error:
        raise BuildError(
            "build-command-failed", "The builder ended well but did not say what it built."
        ) from error


class Compiler:
    """Builds and publishes with one engine; may be shared by threads. Times are seconds.

    ``docker_cli`` is a path, or a name: then the first program of that name on ``PATH`` that can
    use BuildKit. ``push_registry`` is the registry as the engine reaches it, ``registry`` as we do.
    ``push_lock`` must keep two pushes of the same name apart that share an engine.
    """

    def __init__(
        self,
        docker_cli: str,
        docker_host: str,
        push_registry: str,
        registry: RegistryClient,
        *,
        build_timeout: float,
        push_timeout: float,
        temp_root: Path,
        push_lock: PushLock = _no_lock,
        username: str | None = None,
        password: str | None = None,
        tail_limit: int = 8 * 1024,
    ) -> None:
        self._docker_cli = docker_cli
        self._docker_host = docker_host
        self._push_registry = push_registry
        self._registry = registry
        self._build_timeout = build_timeout
        self._push_timeout = push_timeout
        self._temp_root = temp_root
        self._push_lock = push_lock
        self._account = (username, password) if username and password else None
        self._tail_limit = tail_limit
        self._images = EngineImages(docker_host, _CLEANUP_SECONDS)
        self._docker: DockerCommand | None = None
        self._finding = threading.Lock()
        self._base_images: dict[str, tuple[float, str]] = {}

    # ------------------------------------------------------------ public

    def base_image_id(self, reference: str) -> str:
        """Return the content address of a base image in the engine; pull it when it is missing."""
        asked, known = self._base_images.get(reference, (0.0, ""))
        if known and time.monotonic() - asked < _BASE_IMAGE_SECONDS:
            return known
        found = self._inspect(reference)
        if not found.ok:
            self._require_engine()
            pulled = self._run("pull", reference, timeout=self._build_timeout)
            found = self._inspect(reference)
            if not found.ok:
                raise BuildError(
                    "build-command-failed",
                    f"The base image {reference} is not in the engine and pulling it ended with"
                    f" {pulled.ending}:\n{bounded_tail(pulled.tail, self._tail_limit)}",
                )
        return self._remember(reference, found)

    def look_at_base_images(self) -> None:
        """Ask for the base images in use again, so that jobs know at once what they are now."""
        for reference in list(self._base_images):
            try:
                image_id = self._images.id_of(reference)
            except LaunchError:
                image_id = None
            if image_id is None:
                self._base_images.pop(reference, None)
            else:
                self._base_images[reference] = (time.monotonic(), image_id)

    def build(
        self,
        plan: ImagePlan,
        *,
        checkouts: Mapping[str, Path],
        agent: bytes,
        extra_ca: bytes,
        job_id: UUID,
        attempt_count: int,
        labels: Mapping[str, str],
        log: ProgramLog,
        cancelled: threading.Event,
    ) -> BuiltImage:
        """Build the image of ``plan``; :meth:`discard` it when it is no longer needed.

        ``labels`` become part of the image, so what differs between jobs does not belong there.
        ``log`` gets the builder's output as it appears, with whatever secrets are in it. Raises
        :class:`BuildError`.
        """
        tag = f"{LOCAL_REPOSITORY}/{job_id}:{attempt_count}"
        docker = self._command()
        with self._workplace("build", job_id, attempt_count) as place, ExitStack() as on_failure:
            context, iidfile = place / "context", place / "image.id"
            write_context(plan, context, checkouts=checkouts, agent=agent, extra_ca=extra_ca)
            argv = ["build", "--tag", tag, "--iidfile", str(iidfile), "--network", "default"]
            argv += ["--force-rm", *(["--progress", "plain"] if docker.buildkit else [])]
            for name, value in sorted(labels.items()):
                argv += ["--label", f"{name}={value}"]
            watched = BuildOutput(self._secrets(), self._tail_limit)
            # A builder that is stopped late may have named its image already.
            on_failure.callback(self._untag, tag)
            result = self._logged(
                *(*argv, str(context)),
                log=log,
                place=place,
                watched=watched,
                timeout=self._build_timeout,
                cancelled=cancelled,
            )
            self._check(result, "build", watched)
            image_id = _read_image_id(iidfile)
            on_failure.pop_all()
        return BuiltImage(image_id, tag)

    def push(
        self,
        built: BuiltImage,
        *,
        repository: str,
        tag: str,
        log: ProgramLog,
        cancelled: threading.Event,
        check: Callable[[], None] = lambda: None,
    ) -> PublishedImage:
        """Publish an image as ``repository:tag`` and return the digest the registry has it under.

        ``check`` is called when nothing but the push itself is left to do; what it raises ends it.
        The digest is the engine's word for what it pushed, never what the tag means afterwards: by
        then it may be somebody else's. Raises :class:`BuildError`.
        """
        if not is_repository(repository) or not is_tag(tag):
            raise BuildError("push-failed", "The repository or the tag is malformed.")
        name = f"{self._push_registry}/{repository}:{tag}"
        watched = BuildOutput(self._secrets(), self._tail_limit)
        with self._workplace("push", *built.owner) as place, ExitStack() as held:
            try:
                held.enter_context(
                    self._push_lock(name, timeout=self._push_timeout, cancelled=cancelled)
                )
            except TimeoutError as error:
                code = "build-cancelled" if cancelled.is_set() else "push-timed-out"
                raise BuildError(
                    code, "Another push of the same repository and tag did not end."
                ) from error
            check()
            try:
                tagged = self._run("tag", built.image_id, name, timeout=_CLEANUP_SECONDS)
                if not tagged.ok:
                    self._require_engine()
                    raise BuildError(
                        "push-failed",
                        f"Naming the image ended with {tagged.ending}:\n"
                        + bounded_tail(tagged.tail, self._tail_limit),
                    )
                result = self._logged(
                    *("push", name),
                    log=log,
                    place=place,
                    watched=watched,
                    timeout=self._push_timeout,
                    cancelled=cancelled,
                    config=self._login(place),
                )
                self._check(result, "push", watched)
                digest = self._pushed_digest(built, result)
            finally:
                self._untag(name)
        try:
            present = self._registry.head_manifest(repository, digest) == digest
        except RegistryError as error:
            raise BuildError("push-failed", f"After the push: {error.detail}") from error
        if not present:
            raise BuildError("push-failed", "The registry does not have what was pushed to it.")
        return PublishedImage(name, f"{self._push_registry}/{repository}@{digest}", digest)

    def _pushed_digest(self, built: BuiltImage, result: ProcessResult) -> str:
        """Return the digest the engine stated, if it is one of our image's.

        A lock that was lost with its connection lets another job move the name to its own image.
        """
        stated = _DIGEST.findall(result.tail)
        if not stated:
            raise BuildError("push-failed", "The engine did not say which digest it pushed.")
        digest = bytes(stated[-1])
        known = self._run(
            *("image", "inspect", "--format", "{{json .RepoDigests}}", built.image_id),
            timeout=_CLEANUP_SECONDS,
        )
        if b"@" + digest + b'"' not in known.stdout:
            raise BuildError("push-failed", "Another image was pushed under the same name.")
        return digest.decode()

    def discard(self, built: BuiltImage) -> None:
        """Take the job's name off its image; the layers stay in the engine's cache."""
        self._untag(built.local_tag)

    def forget(self, name: str) -> None:
        """Take a name off an image that was to be pushed under it."""
        self._untag(name)

    def built_images(self, labels: Mapping[str, str] = MappingProxyType({})) -> list[BuiltImage]:
        """Return the images under jobs' names, for whoever removes those of jobs that are over."""
        found = []
        for image_id, name in self._named_images(f"{LOCAL_REPOSITORY}/", labels):
            image = BuiltImage(image_id, name)
            try:
                image.owner  # noqa: B018 - a name of another form is not ours
            except ValueError:
                continue
            found.append(image)
        return found

    def names_to_push(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names of the registry that images with ``labels`` have in the engine.

        An image has one only while it is pushed, or for good when the worker was killed meanwhile.
        """
        return [name for _, name in self._named_images(f"{self._push_registry}/", labels)]

    def pulled_images(self, labels: Mapping[str, str]) -> list[PulledImage]:
        """Return the images with ``labels`` that the engine has by their digest in the registry."""
        return [
            PulledImage(repository, digest, image.created_at)
            for image in self._listed(labels)
            for name, _, digest in (name.partition("@") for name in image.digests)
            for registry, _, repository in (name.partition("/"),)
            if registry == self._push_registry and digest.startswith("sha256:")
        ]

    def remove_pulled(self, image: PulledImage) -> bool:
        """Remove an image by its digest; False when a container is made of it."""
        name = f"{self._push_registry}/{image.repository}@{image.digest}"
        return self._run("rmi", name, timeout=_CLEANUP_SECONDS).ok

    # ------------------------------------------------------------ details

    def _command(self) -> DockerCommand:
        """Find out once which program to use and whether it has BuildKit."""
        with self._finding:
            if self._docker is None:
                try:
                    docker, certain = find_docker(self._docker_cli, self._environment())
                except OSError as error:
                    raise BuildError(
                        "build-write-context-failed",
                        f"The temporary folder takes nothing: {error.strerror or 'unknown error'}.",
                    ) from error
                if not certain:
                    return docker
                self._docker = docker
                logger.info("builder_chosen", buildkit=docker.buildkit)
            return self._docker

    @contextmanager
    def _workplace(self, purpose: str, job_id: UUID, attempt_count: int) -> Iterator[Path]:
        with ExitStack() as stack:
            try:
                place = stack.enter_context(
                    workplace(self._temp_root, purpose, job_id, attempt_count)
                )
            except OSError as error:
                raise BuildError(
                    "build-write-context-failed",
                    f"No folder to work in could be made: {error.strerror or 'unknown error'}.",
                ) from error
            yield place

    def _environment(self, config: Path | None = None) -> dict[str, str]:
        """Return the environment of the command line: the operator's own access to the engine."""
        passed = ("PATH", "HOME", "SSH_AUTH_SOCK", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
        env = {name: os.environ[name] for name in passed if name in os.environ}
        env |= {"DOCKER_HOST": self._docker_host, "LC_ALL": "C", "DOCKER_CLI_HINTS": "false"}
        if config is not None:
            env["DOCKER_CONFIG"] = str(config)
        elif "DOCKER_CONFIG" in os.environ:
            env["DOCKER_CONFIG"] = os.environ["DOCKER_CONFIG"]
        return env

    def _logged(
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
            result = self._run(
                *arguments, timeout=timeout, streams=take, cancelled=cancelled, config=config
            )
        except BaseException:
            output.ended(None)
            raise
        watched.close()
        output.ended(result)
        return result

    def _run(
        self,
        *arguments: str,
        timeout: float,
        streams: Callable[[str, bytes], None] | None = None,
        cancelled: threading.Event | None = None,
        config: Path | None = None,
    ) -> ProcessResult:
        docker = self._command()
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

    def _named_images(self, prefix: str, labels: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return id and name of the images with ``labels`` whose name starts with ``prefix``."""
        return [
            (image.image_id, name)
            for image in self._listed(labels)
            for name in image.names
            if name.startswith(prefix)
        ]

    def _listed(self, labels: Mapping[str, str]) -> list[ListedImage]:
        """Return the images with ``labels``, none while the engine does not answer."""
        try:
            return self._images.listed(labels)
        except LaunchError as error:
            logger.warning("images_not_listed", code=error.code)
            return []

    def _remember(self, reference: str, found: ProcessResult) -> str:
        image_id = found.stdout.decode("ascii", "replace").strip()
        self._base_images[reference] = (time.monotonic(), image_id)
        return image_id

    def _require_engine(self) -> None:
        """Raise ``adapter-unavailable`` when nobody answers: the program then fails of that."""
        version = ("version", "--format", "{{.Server.Version}}")
        if not self._run(*version, timeout=_CLEANUP_SECONDS).ok:
            raise BuildError("adapter-unavailable", "The Docker Engine does not answer.")

    def _inspect(self, reference: str) -> ProcessResult:
        inspect = ("image", "inspect", "--format", "{{.Id}}", reference)
        return self._run(*inspect, timeout=_CLEANUP_SECONDS)

    def _secrets(self) -> tuple[str, ...]:
        return (self._account[1],) if self._account else ()

    def _login(self, place: Path) -> Path | None:
        """Write the registry's account where only the command line looks for it."""
        if self._account is None:
            return None
        config = place / "docker"
        config.mkdir(mode=0o700)
        auth = base64.b64encode(":".join(self._account).encode()).decode()
        path = config / "config.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"auths": {self._push_registry: {"auth": auth}}}))
        return config

    def _check(self, result: ProcessResult, kind: str, watched: BuildOutput) -> None:
        """Raise what a finished build or push stands for, unless it stands for success."""
        if result.ok:
            return
        said = bounded_tail(watched.tail(), self._tail_limit).strip()
        said = f"\n{said}" if said else ""
        if result.cancelled:
            raise BuildError("build-cancelled", f"The {kind} was cancelled.")
        if result.timed_out:
            limit = self._build_timeout if kind == "build" else self._push_timeout
            raise BuildError(
                f"{kind}-timed-out", f"The {kind} took longer than {limit:g} seconds.{said}"
            )
        self._require_engine()
        if kind == "push":
            raise BuildError("push-failed", f"The push ended with {result.ending}.{said}")
        step = f" at the step {watched.failed_step}" if watched.failed_step else ""
        raise BuildError(
            "build-command-failed", f"The build ended with {result.ending}{step}.{said}"
        )

    def _untag(self, name: str) -> None:
        """Take a name off an image; the image goes with its last name, cached layers stay.

        By force, because a container may run from it: another worker was quicker with the same job.
        """
        try:
            result = self._run("rmi", "--force", "--no-prune", name, timeout=_CLEANUP_SECONDS)
        except BuildError:
            logger.warning("image_name_not_removed", name=name)
            return
        if not result.ok and b"No such image" not in result.tail:
            logger.warning("image_name_not_removed", name=name, ending=result.ending)
