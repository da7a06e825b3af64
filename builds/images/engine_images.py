"""The images that an engine has: bases, those under the names of jobs, and what was pulled."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

import structlog

from builds.images.context import BuildError
from builds.images.docker_program import SHORT_SECONDS, DockerProgram, ProgramLog, RedactedTail
from controlplane.security.redaction import bounded_tail
from controlplane.subprocesses import ProcessResult
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.build.build_steps import STEP_NAME
from workspaces.runtimes.docker.images import ImageList, ListedImage

logger = structlog.get_logger(__name__)

LOCAL_REPOSITORY = "svc-build"
_STEP_CONTAINER = re.compile(rf"{STEP_NAME}-([0-9a-f-]{{36}})-(\d+)-\d+")
_BASE_IMAGE_SECONDS = 30.0
"""How long the id of a base image is remembered: asking costs more than reusing an image does.
:meth:`EngineImages.look_at_base_images` asks in the meantime, when no job waits for the answer."""


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
class StepContainer:
    """The container of a step that runs on its own."""

    name: str
    owner: tuple[UUID, int]
    """The job and the attempt count that it works for."""


@dataclass(frozen=True, slots=True)
class PulledImage:
    """An image of the registry that the engine holds to launch workspaces from."""

    repository: str
    digest: str
    created_at: datetime


class EngineImages:
    """Finds, names and removes images in one engine; may be shared by threads.

    ``push_registry`` is the registry as the engine reaches it.
    """

    def __init__(
        self, docker: DockerProgram, push_registry: str, *, pull_timeout: float, tail_limit: int
    ) -> None:
        self.docker = docker
        self._push_registry = push_registry
        self._pull_timeout = pull_timeout
        self._tail_limit = tail_limit
        self._images = ImageList(docker.host, SHORT_SECONDS)
        self._base_images: dict[str, tuple[float, str]] = {}

    def base_image_id(
        self,
        reference: str,
        *,
        log: ProgramLog,
        cancelled: threading.Event,
        before_pull: Callable[[], None] = lambda: None,
    ) -> str:
        """Return the content address of a base image in the engine; pull it when it is missing.

        ``before_pull`` is called when it is missing; what it raises ends it. Raises
        :class:`BuildError`.
        """
        asked, known = self._base_images.get(reference, (0.0, ""))
        if known and time.monotonic() - asked < _BASE_IMAGE_SECONDS:
            return known
        found = self.docker.image_id(reference)
        if not found.ok:
            self.docker.require_engine()
            before_pull()
            found = self._pull(reference, log, cancelled)
        return self._remember(reference, found)

    def _pull(self, reference: str, log: ProgramLog, cancelled: threading.Event) -> ProcessResult:
        """Pull a base image; return its id as the engine prints it."""
        watched = RedactedTail((), self._tail_limit)
        pulled = self.docker.logged(
            *("pull", reference),
            told=log.started("docker pull", ["docker", "pull", reference]),
            watched=watched,
            timeout=self._pull_timeout,
            cancelled=cancelled,
        )
        if pulled.cancelled:
            raise BuildError("build-cancelled", "The build was cancelled.")
        found = self.docker.image_id(reference)
        if not found.ok:
            said = bounded_tail(watched.bytes(), self._tail_limit)
            if pulled.timed_out:
                raise BuildError(
                    "build-timed-out",
                    f"Pulling the base image {reference} took longer than"
                    f" {self._pull_timeout:g} seconds.\n{said}".rstrip(),
                )
            raise BuildError(
                "build-command-failed",
                f"The base image {reference} is not in the engine and pulling it ended with"
                f" {pulled.ending}:\n{said}",
            )
        return found

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

    def discard(self, built: BuiltImage) -> None:
        """Take the job's name off its image, which stays for builds that end with the same."""
        with suppress(LaunchError):
            self._images.give_to_parent(built.local_tag)
        self.docker.untag(built.local_tag)

    def forget(self, name: str) -> None:
        """Take a name off an image that was to be pushed under it."""
        self.docker.untag(name)

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

    def step_containers(self) -> list[StepContainer]:
        """Return the containers of steps that there are, of other installations as well."""
        try:
            names = self._images.containers_named(f"{STEP_NAME}-")
        except LaunchError as error:
            logger.warning("containers_not_listed", code=error.code)
            return []
        found = (_STEP_CONTAINER.fullmatch(name) for name in names)
        return [StepContainer(each[0], (UUID(each[1]), int(each[2]))) for each in found if each]

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
        return self.docker.run("rmi", name, timeout=SHORT_SECONDS).ok

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
