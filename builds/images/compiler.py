"""From a plan to an image in the registry: its steps, ``docker push``, the digest.

The engine's command line is run as a subprocess, because how it ends is the contract for build
failures: an exit code other than 0, or a signal (specification, "Errors"). Promises, in every
outcome: a name for the image that no other job has, output that is redacted and bounded, a time
limit, an end soon after cancellation, and nothing left behind but the images of steps that ended
well.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

from builds.images.context import BuildError, write_context
from builds.images.docker_program import SHORT_SECONDS, DockerProgram, ProgramLog, RedactedTail
from builds.images.engine_images import LOCAL_REPOSITORY, BuiltImage, EngineImages
from builds.images.step_runner import Network, StepRunner
from builds.images.work_folders import sweep_leftovers, workplace
from builds.planner import BuildStep, ImagePlan, reach_of
from controlplane.errors import JobError
from controlplane.oci_names import is_repository, is_tag
from controlplane.security.redaction import bounded_tail
from controlplane.subprocesses import ProcessResult
from registries.client import RegistryClient, RegistryError
from workspaces.egress.agreed_policy import AgreedPolicy
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.build.build_steps import STEP_NAME, StepContainers, StepLimits

__all__ = ["BuildError", "BuiltImage", "Compiler", "PublishedImage", "sweep_leftovers"]

_ENGINE_SECONDS = 120.0
"""How long one call of the engine for a step may take on a busy machine."""
_LONGEST_STEP = 200
_DIGEST = re.compile(rb"digest: (sha256:[0-9a-f]{64}) size: ")


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


class Compiler(EngineImages):
    """Builds and publishes with one engine; may be shared by threads. Times are seconds.

    ``docker_cli`` is a path, or a name: then the first program of that name on ``PATH``.
    ``push_registry`` is the registry as the engine reaches it, ``registry`` as we do. ``limits``
    are those of each step of a build. ``push_lock`` must keep two pushes of the same name apart
    that share an engine.
    """

    def __init__(
        self,
        docker_cli: str,
        docker_host: str,
        push_registry: str,
        registry: RegistryClient,
        *,
        limits: StepLimits,
        build_timeout: float,
        push_timeout: float,
        temp_root: Path,
        push_lock: PushLock = _no_lock,
        username: str | None = None,
        password: str | None = None,
        tail_limit: int = 8 * 1024,
    ) -> None:
        super().__init__(
            DockerProgram(docker_cli, docker_host),
            push_registry,
            pull_timeout=build_timeout,
            tail_limit=tail_limit,
        )
        self.containers = StepContainers(docker_host, limits, _ENGINE_SECONDS)
        self._registry = registry
        self._build_timeout = build_timeout
        self._push_timeout = push_timeout
        self._temp_root = temp_root
        self._push_lock = push_lock
        self._limits = limits
        self._account = (username, password) if username and password else None

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
        outbound: bool = True,
        egress: AgreedPolicy | None = None,
    ) -> BuiltImage:
        """Build the image of ``plan``; :meth:`discard` it when it is no longer needed.

        ``labels`` become part of the image, so what differs between jobs does not belong there.
        ``log`` gets the output of steps as it appears, with whatever secrets are in it. Without
        ``outbound`` nothing that the blueprint's author wrote has a network; with ``egress`` it has
        one under the author's policy. Raises :class:`BuildError`.
        """
        tag = f"{LOCAL_REPOSITORY}/{job_id}:{attempt_count}"
        deadline = time.monotonic() + self._build_timeout
        packages = Network(partial(self._network, None))
        policy = packages if outbound else None
        if egress is not None and outbound:
            reach = reach_of(plan, outbound=outbound, policy=egress.policy)
            policy = Network(
                partial(self._network, egress),
                asks_proxy=True,
                decides=json.dumps(reach, sort_keys=True),
            )

        def require_time() -> None:
            if cancelled.is_set() or time.monotonic() > deadline:
                raise self._stopped("build", cancelled=cancelled.is_set())

        with self._workplace("build", job_id, attempt_count) as place:
            context = place / "context"
            write_context(plan, context, checkouts=checkouts, agent=agent, extra_ca=extra_ca)
            runner = StepRunner(
                docker=self.docker,
                containers=self.containers,
                images=self._images,
                context=context,
                name=f"{STEP_NAME}-{job_id}-{attempt_count}",
                labels=labels,
                packages=packages,
                policy=policy,
                deadline=deadline,
                log=log,
                cancelled=cancelled,
                new_tail=self._new_tail,
                require_time=require_time,
                require_success=partial(self._require_success, "build"),
            )
            try:
                base_image = self.base_image_id(plan.base_image, log=log, cancelled=cancelled)
                image_id = runner.carry_out(base_image, plan.steps())
            except LaunchError as error:
                raise BuildError(error.code, error.message) from error
        self._name(image_id, tag)
        return BuiltImage(image_id, tag)

    def _name(self, image_id: str, tag: str) -> None:
        try:
            named = self.docker.run("tag", image_id, tag, timeout=SHORT_SECONDS)
            self._require_named(named, "build-command-failed")
        except BaseException:
            self.docker.untag(tag)  # it may have been named all the same
            raise

    def _require_named(self, named: ProcessResult, code: str) -> None:
        if not named.ok:
            self.docker.require_engine()
            said = bounded_tail(named.tail, self._tail_limit)
            raise BuildError(code, f"Naming the image ended with {named.ending}:\n{said}")

    @contextmanager
    def _network(self, egress: AgreedPolicy | None) -> Iterator[str]:
        """Have a network for a build, and say what it is called."""
        with ExitStack() as held:
            try:
                name = held.enter_context(self._limits.network(egress))
            except JobError as error:
                raise BuildError(error.code, error.message) from error
            yield name

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
        watched = self._new_tail()
        with self._workplace("push", *built.owner) as place, ExitStack() as held:
            try:
                held.enter_context(
                    self._push_lock(name, timeout=self._push_timeout, cancelled=cancelled)
                )
            except TimeoutError as error:
                code = "build-cancelled" if cancelled.is_set() else "push-timed-out"
                raise BuildError(
                    code, "Another push to the same repository and tag has not finished."
                ) from error
            check()
            try:
                tagged = self.docker.run("tag", built.image_id, name, timeout=SHORT_SECONDS)
                self._require_named(tagged, "push-failed")
                result = self.docker.logged(
                    *("push", name),
                    told=log.started("docker push", ["docker", "push", name]),
                    watched=watched,
                    timeout=self._push_timeout,
                    cancelled=cancelled,
                    config=self._login(place),
                )
                self._require_success("push", result, watched)
                digest = self._pushed_digest(built, result)
            finally:
                self.docker.untag(name)
        try:
            present = self._registry.head_manifest(repository, digest) == digest
        except RegistryError as error:
            raise BuildError("push-failed", f"After the push: {error.detail}") from error
        if not present:
            raise BuildError(
                "push-failed", "The registry does not have the image that was pushed to it."
            )
        return PublishedImage(name, f"{self._push_registry}/{repository}@{digest}", digest)

    def _pushed_digest(self, built: BuiltImage, result: ProcessResult) -> str:
        """Return the digest the engine stated, if it is one of our image's.

        A lock that was lost with its connection lets another job move the name to its own image.
        """
        stated = _DIGEST.findall(result.tail)
        if not stated:
            raise BuildError("push-failed", "The engine did not report the digest that it pushed.")
        digest = bytes(stated[-1])
        known = self.docker.run(
            *("image", "inspect", "--format", "{{json .RepoDigests}}", built.image_id),
            timeout=SHORT_SECONDS,
        )
        if b"@" + digest + b'"' not in known.stdout:
            raise BuildError("push-failed", "Another image was pushed under the same name.")
        return digest.decode()

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
                    f"The work folder could not be created: {error.strerror or 'unknown error'}.",
                ) from error
            yield place

    def _new_tail(self) -> RedactedTail:
        return RedactedTail((self._account[1],) if self._account else (), self._tail_limit)

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

    def _require_success(
        self,
        kind: str,
        result: ProcessResult,
        watched: RedactedTail,
        step: BuildStep | None = None,
    ) -> None:
        """Raise what a finished program stands for, unless it stands for success."""
        if result.ok:
            return
        said = bounded_tail(watched.bytes(), self._tail_limit).strip()
        said = f"\n{said}" if said else ""
        if result.cancelled or result.timed_out:
            raise self._stopped(kind, cancelled=result.cancelled, said=said)
        self.docker.require_engine()
        if step is None:
            raise BuildError("push-failed", f"The push ended with {result.ending}.{said}")
        told = (f"RUN {json.dumps(step.argv)}" if step.argv else "COPY")[:_LONGEST_STEP]
        raise BuildError(
            "build-command-failed",
            f"The build ended with {result.ending} at the step {told}.{said}",
        )

    def _stopped(self, kind: str, *, cancelled: bool, said: str = "") -> BuildError:
        if cancelled:
            return BuildError("build-cancelled", f"The {kind} was cancelled.")
        limit = self._build_timeout if kind == "build" else self._push_timeout
        return BuildError(
            f"{kind}-timed-out", f"The {kind} took longer than {limit:g} seconds.{said}"
        )
