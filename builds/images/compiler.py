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
from builds.images.docker_program import SHORT_SECONDS, DockerProgram, OneBuild
from builds.images.engine_images import LOCAL_REPOSITORY, BuiltImage, EngineImages
from builds.images.program_output import BuildOutput, ProgramLog
from builds.images.work_folders import sweep_leftovers, workplace
from builds.planner import ImagePlan, reach_of, split_dockerfile
from controlplane.errors import JobError
from controlplane.oci_names import is_repository, is_tag
from controlplane.security.redaction import bounded_tail
from controlplane.subprocesses import ProcessResult
from registries.client import RegistryClient, RegistryError
from workspaces.egress.agreed_policy import AgreedPolicy
from workspaces.runtimes.docker.build.build_steps import STEP_NAME, AuthorSteps, StepLimits

__all__ = ["BuildError", "BuiltImage", "Compiler", "PublishedImage", "sweep_leftovers"]

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

    ``docker_cli`` is a path, or a name: then the first program of that name on ``PATH`` that can
    use BuildKit. ``push_registry`` is the registry as the engine reaches it, ``registry`` as we do.
    ``limits`` are those of each step of a build; the classic builder keeps them, so it is used.
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
        limits: StepLimits | None = None,
    ) -> None:
        super().__init__(
            DockerProgram(docker_cli, docker_host),
            push_registry,
            pull_timeout=build_timeout,
            tail_limit=tail_limit,
        )
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
        ``log`` gets the builder's output as it appears, with whatever secrets are in it. Without
        ``outbound`` nothing that the blueprint's author wrote has a network; with ``egress`` it has
        one under the author's policy. Raises :class:`BuildError`.
        """
        tag = f"{LOCAL_REPOSITORY}/{job_id}:{attempt_count}"
        with self._workplace("build", job_id, attempt_count) as place, ExitStack() as on_failure:
            context = place / "context"
            write_context(plan, context, checkouts=checkouts, agent=agent, extra_ca=extra_ca)
            one = OneBuild(
                docker=self.docker,
                limits=self._limits,
                context=context,
                deadline=time.monotonic() + self._build_timeout,
                log=log,
                cancelled=cancelled,
                new_output=partial(BuildOutput, self._secrets(), self._tail_limit),
                check=self._check,
            )
            options = ["--tag", tag]
            for name, value in sorted(labels.items()):
                options += ["--label", f"{name}={value}"]
            # A builder that is stopped late may have named its image already.
            on_failure.callback(self.docker.untag, tag)
            packages, theirs = split_dockerfile(plan)
            if self._limits is None and outbound and egress is None:
                packages, theirs = plan.dockerfile, ""
            with self._network(None) as network:
                image_id = one.image_of(packages, [] if theirs else options, network=network)
            if theirs:
                # Its layers are taken again only for steps that reach the same.
                policy = None if egress is None else egress.policy
                reach = reach_of(plan, outbound=outbound, policy=policy)
                with self._network(egress) if outbound else nullcontext("none") as network:
                    steps = AuthorSteps(
                        build=one,
                        images=self._images,
                        name=f"{STEP_NAME}-{job_id}-{attempt_count}",
                        labels=labels,
                        network=network,
                        asks_proxy=egress is not None,
                        reach=json.dumps(reach, sort_keys=True),
                    )
                    image_id = steps.carry_out(image_id, theirs, options)
            on_failure.pop_all()
        return BuiltImage(image_id, tag)

    @contextmanager
    def _network(self, egress: Callable[[str], None] | None) -> Iterator[str]:
        """Have a network for a build, and say what it is called."""
        if self._limits is None:
            # Who has no networks of their own has no policy either.
            yield "default" if egress is None else "none"
            return
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
        watched = BuildOutput(self._secrets(), self._tail_limit)
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
                if not tagged.ok:
                    self.docker.require_engine()
                    raise BuildError(
                        "push-failed",
                        f"Naming the image ended with {tagged.ending}:\n"
                        + bounded_tail(tagged.tail, self._tail_limit),
                    )
                result = self.docker.logged(
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
        self.docker.require_engine()
        if kind == "push":
            raise BuildError("push-failed", f"The push ended with {result.ending}.{said}")
        step = f" at the step {watched.failed_step}" if watched.failed_step else ""
        raise BuildError(
            "build-command-failed", f"The build ended with {result.ending}{step}.{said}"
        )
