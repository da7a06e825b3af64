"""What a worker does with a job it has claimed: plan, fetch, build, publish, launch.

Every step may be repeated by another worker after a crash at any point: a build is cached, a push
of the same image changes nothing, a published job goes on at its launch, and a launch adopts the
container that the run already has. All writes are fenced (:class:`workspaces.models.Fence`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from builds.images.compiler import BuildError, Compiler, PublishedImage
from builds.images.garbage import repository_lock
from builds.images.leftovers import remove_leftovers
from builds.images.phases import measured
from builds.images.work_folders import workplace
from builds.pipeline.build_record import (
    RECORD_ENDED,
    BuildRecord,
    recording,
)
from builds.pipeline.checkouts import SourceFetcher
from builds.planner import Catalogue, ImagePlan, plan
from controlplane.database.locks import shared_advisory_lock
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.errors import ControlPlaneError, JobError
from controlplane.metrics.families import BUILDS_REUSED
from registries.client import RegistryClient
from runs.agent_archive import agent_archive, agent_digest
from runs.boot_runs import boot_run
from scm import git
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint
from workspaces.credentials.documents import CredentialDelivery
from workspaces.credentials.upkeep import keep_renewed
from workspaces.launch_request import BootLimits, boot_configuration, volumes_of
from workspaces.lifecycle.failures import end_cancelled_boot_run, fail_claimed_job
from workspaces.lifecycle.records import records
from workspaces.lifecycle.resume import resumed
from workspaces.models import Attempt, BuildJob, LeaseLost
from workspaces.runtimes.base import LaunchedRuntime, LaunchRequest, RuntimeAdapter

log = structlog.get_logger(__name__)

T = TypeVar("T")

ATTEMPT_OVER = "attempt-over"
REPOSITORY_LOCK_SECONDS = 120.0


class ShutdownError(Exception):
    """The worker was told to stop at once; the job was given back."""


@dataclass(slots=True)
class JobControl:
    """How others stop a job that runs: its lease is lost, or the worker is told to stop at once."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    shutdown: bool = False

    def lose(self) -> None:
        """Stop the work because the job is not ours any more."""
        self.cancelled.set()

    def shut_down(self) -> None:
        """Stop the work and give the job back."""
        self.shutdown = True
        self.cancelled.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunner:
    """Runs one claimed job at a time per call; calls may come from several threads."""

    compiler: Compiler
    registry: RegistryClient
    adapter: RuntimeAdapter
    catalogue: Catalogue
    sources: git.SourcePolicy
    boot_limits: BootLimits
    temp_root: Path
    extra_ca: bytes
    instance_id: str
    launch_timeout: float

    def run(self, job: BuildJob, control: JobControl) -> None:
        """Bring ``job`` to its end: published and launched, or failed.

        Raises what made it fail after the failure was written; ``LeaseLost`` when another
        worker or an operator took the job away; ``ShutdownError`` when it was given back.
        """
        attempt = job.attempt
        try:
            if attempt.status in Attempt.TERMINAL:
                # An earlier worker failed and could write that to the attempt only.
                raise JobError(attempt.error_code or ATTEMPT_OVER, attempt.error_message)
            self._write(control, lambda: self._start(job))
            self._require_open_record(job, control)
            blueprint = Blueprint.parse(attempt.spec)
            image_plan = plan(blueprint, blueprint.target.os.family, self.catalogue)
            credentials = CredentialDelivery.of(job, control.cancelled)
            if job.status != BuildJob.Status.SUCCEEDED:
                # Accounts that do not open fail the job here, and not after a long build.
                secrets = self._secrets(credentials)
                with self._repository_kept(job, control):
                    with recording(job, secrets, cancelled=control.cancelled) as record:
                        published, plan_hash, reused = self._publish(
                            job, image_plan, record, control
                        )
                    self._write(
                        control, lambda: self._finish_build(job, published, plan_hash, reused)
                    )
                job.published_digest_reference = published.digest_reference
            launched = self._launch(job, blueprint, image_plan, credentials, control)
            self._write(control, lambda: self._finish_launch(job, launched))
        except LeaseLost:
            end_cancelled_boot_run(job)
            raise
        except Exception as exc:
            if control.shutdown:
                BuildJob.objects.give_back(job.fence)
                raise ShutdownError from exc
            if control.cancelled.is_set():
                end_cancelled_boot_run(job)
                raise LeaseLost("the work was stopped") from exc
            fail_claimed_job(
                job.fence,
                attempt,
                exc,
                timeout=DATABASE_RETRY_SECONDS,
                cancelled=control.cancelled,
            )
            raise

    def tidy(self, grace: timedelta) -> None:
        """Remove what killed workers left on this engine and in this folder; look at its images."""
        self.compiler.look_at_base_images()
        remove_leftovers(self.compiler, self.temp_root, instance_id=self.instance_id, grace=grace)

    def _write(self, control: JobControl, write: Callable[[], None]) -> None:
        retry_database(write, timeout=DATABASE_RETRY_SECONDS, cancelled=control.cancelled)

    def _read(self, control: JobControl, read: Callable[[], T]) -> T:
        return retry_database(read, timeout=DATABASE_RETRY_SECONDS, cancelled=control.cancelled)

    # ------------------------------------------------------------ writes

    def _start(self, job: BuildJob) -> None:
        with transaction.atomic():
            BuildJob.objects.lock(job.fence)
            workspaces.start_attempt(
                job.attempt, worker_id=job.worker_id, attempt_count=job.attempt_count
            )
            records().start_boot_run(job.attempt)

    def _require_open_record(self, job: BuildJob, control: JobControl) -> None:
        """Fail the job when the record of its boot run has ended: nothing runs without a record.

        An earlier worker launched the workspace and died; the boot failed meanwhile.
        """
        run = self._read(control, lambda: boot_run(job.attempt))
        if run.status in run.TERMINAL:
            raise JobError(
                RECORD_ENDED,
                run.error_message or "The record of the workspace's start has ended already.",
            )

    @staticmethod
    def _secrets(credentials: CredentialDelivery) -> list[bytes]:
        """Return what must not be in the record of a build, whoever prints it."""
        ours = [settings.REGISTRY_PASSWORD] if settings.REGISTRY_PASSWORD else []
        return [secret.encode() for secret in [*ours, *credentials.masks()]]

    def _finish_build(
        self, job: BuildJob, published: PublishedImage, plan_hash: str, reused: bool
    ) -> None:
        """Write the published image; the lease stays, because the launch is still to come."""
        with transaction.atomic():
            BuildJob.objects.write(
                job.fence,
                status=BuildJob.Status.SUCCEEDED,
                plan_hash=plan_hash,
                reused=reused,
                published_reference=published.reference,
                published_digest_reference=published.digest_reference,
                published_digest=published.digest,
                error_code="",
                error_message="",
                finished_at=Now(),
            )
            workspaces.await_runtime(
                job.attempt,
                published={
                    "reference": published.reference,
                    "digestReference": published.digest_reference,
                    "digest": published.digest,
                    "reused": reused,
                },
            )

    def _finish_launch(self, job: BuildJob, launched: LaunchedRuntime) -> None:
        with transaction.atomic():
            BuildJob.objects.write(job.fence, lease_expires_at=None)
            workspaces.mark_ready(job.attempt, launched)

    # ------------------------------------------------------------ work

    @contextmanager
    def _repository_kept(self, job: BuildJob, control: JobControl) -> Iterator[None]:
        """Have nothing removed from the job's repository until its row says which image it has."""
        with ExitStack() as held:
            try:
                held.enter_context(
                    shared_advisory_lock(
                        repository_lock(job.repository),
                        timeout=REPOSITORY_LOCK_SECONDS,
                        cancelled=control.cancelled,
                    )
                )
            except TimeoutError as exc:
                raise BuildError(
                    "push-timed-out", "Old images of the repository were being removed for long."
                ) from exc
            yield

    def _publish(
        self, job: BuildJob, image_plan: ImagePlan, record: BuildRecord, control: JobControl
    ) -> tuple[PublishedImage, str, bool]:
        """Return the published image, the plan's hash, and whether nothing had to be built."""
        before = self._resume(job, control)
        if before is not None:
            image, plan_hash = before
            record.state("The published image is launched again: nothing has to be built.")
            return image, plan_hash, True
        fetcher = SourceFetcher(job, self.sources, record, control.cancelled)
        resolved = {source.id: fetcher.resolve(source) for source in image_plan.sources}
        plan_hash = image_plan.fingerprint(
            {source_id: source.commit for source_id, source in resolved.items()},
            self.compiler.base_image_id(image_plan.base_image),
            agent_digest(),
            self.extra_ca,
        )
        self._check_claim(job, control)
        earlier = self._reuse(job, plan_hash)
        if earlier is not None:
            record.state("An image of the same plan is there already: nothing has to be built.")
            BUILDS_REUSED.count()
            return earlier, plan_hash, True
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(
                    workplace(self.temp_root, "sources", job.pk, job.attempt_count)
                )
            except OSError as exc:
                raise BuildError(
                    "build-write-context-failed",
                    f"No folder for the sources could be made: {exc.strerror or 'unknown error'}.",
                ) from exc
            built = self.compiler.build(
                image_plan,
                checkouts=fetcher.checkout(resolved, folder),
                agent=agent_archive(),
                extra_ca=self.extra_ca,
                job_id=job.pk,
                attempt_count=job.attempt_count,
                # Only what is the same for every job of this plan: a label is part of the image.
                labels={"svc.instance": self.instance_id},
                log=record,
                cancelled=control.cancelled,
            )
        try:
            published = self.compiler.push(
                built,
                repository=job.repository,
                tag=job.tag,
                log=record,
                cancelled=control.cancelled,
                check=lambda: self._check_claim(job, control),
            )
        finally:
            self.compiler.discard(built)
        return published, plan_hash, False

    def _check_claim(self, job: BuildJob, control: JobControl) -> None:
        """Raise ``LeaseLost`` unless the job is still ours.

        The registry knows no fence: a worker that slept must not put its image over the one that
        its successor has published.
        """
        self._write(control, lambda: BuildJob.objects.require(job.fence))

    def _reuse(self, job: BuildJob, plan_hash: str) -> PublishedImage | None:
        """Put an image of the same plan under the job's tag; None when the registry has none."""
        same_plan = (
            BuildJob.objects.filter(
                status=BuildJob.Status.SUCCEEDED,
                plan_hash=plan_hash,
                registry_id=job.registry_id,
                image_removed_at__isnull=True,
            )
            .exclude(plan_hash="")
            .order_by("-id")
            .values_list("repository", "published_digest")
        )
        earlier = retry_database(same_plan.first, timeout=DATABASE_RETRY_SECONDS)
        return None if earlier is None else self._tag_again(job, *earlier)

    def _resume(self, job: BuildJob, control: JobControl) -> tuple[PublishedImage, str] | None:
        """Return the image that the workspace had, with its plan's hash, if it is to resume.

        One that the registry has lost is built again.
        """
        earlier = self._read(control, lambda: resumed(job))
        if earlier is None:
            return None
        self._check_claim(job, control)
        image = self._tag_again(job, earlier.repository, earlier.published_digest)
        return None if image is None else (image, earlier.plan_hash)

    def _tag_again(self, job: BuildJob, repository: str, digest: str) -> PublishedImage | None:
        """Put an image of the registry under the job's tag; None when there is none."""
        try:
            if not self.registry.copy(repository, digest, job.repository, job.tag):
                return None
        except ControlPlaneError as exc:
            log.warning("reuse_failed", reason=exc.detail, digest=digest)
            return None
        push_registry = settings.REGISTRY_PUSH_REGISTRY
        return PublishedImage(
            reference=f"{push_registry}/{job.repository}:{job.tag}",
            digest_reference=f"{push_registry}/{job.repository}@{digest}",
            digest=digest,
        )

    @measured("launch")
    def _launch(
        self,
        job: BuildJob,
        blueprint: Blueprint,
        image_plan: ImagePlan,
        credentials: CredentialDelivery,
        control: JobControl,
    ) -> LaunchedRuntime:
        request = self._launch_request(job, blueprint, image_plan, credentials, control)
        try:
            return self.adapter.launch(request, cancelled=control.cancelled)
        except JobError as exc:
            raise credentials.without_secrets(exc) from exc

    def _launch_request(
        self,
        job: BuildJob,
        blueprint: Blueprint,
        image_plan: ImagePlan,
        credentials: CredentialDelivery,
        control: JobControl,
    ) -> LaunchRequest:
        attempt: Attempt = job.attempt
        runtime = blueprint.runtime
        resources = runtime.resources
        return LaunchRequest(
            instance_id=self.instance_id,
            run_id=attempt.run_id,
            attempt_id=attempt.pk,
            workspace_id=attempt.workspace_id,
            job_id=job.pk,
            attempt_count=job.attempt_count,
            image=job.published_digest_reference,
            boot=boot_configuration(
                attempt,
                blueprint,
                user=image_plan.user,
                home=image_plan.home,
                shell=image_plan.shell,
                harness_command=image_plan.harness_command,
                limits=self.boot_limits,
                credentials=bool(credentials.references),
            ),
            working_directory=runtime.working_directory,
            outbound=runtime.network.outbound,
            memory_mb=resources.memory_mb or settings.WORKSPACE_MEMORY_MB,
            cpus=resources.cpus or settings.WORKSPACE_CPUS,
            pids=resources.pids or settings.WORKSPACE_PIDS,
            sudo=blueprint.customization.sudo,
            restart=runtime.persistence == "persistent",
            oci_runtime=runtime.oci_runtime,
            timeout=self.launch_timeout,
            volumes=volumes_of(blueprint, home=image_plan.home),
            fresh_volumes=not self._read(control, lambda: workspaces.was_ever_ready(attempt)),
            before_removal=partial(self._check_claim, job, control),
            salvage=partial(records().collect_from, attempt.run_id),
            credentials=credentials.document if credentials.references else None,
            parting=partial(keep_renewed, self.adapter, attempt.run_id),
        )


def source_policy() -> git.SourcePolicy:
    """Return the operator's policy for sources."""
    timeout = settings.WORKSPACE_SOURCE_TIMEOUT_MS / 1000
    return git.SourcePolicy(
        allow_file=settings.SVC_SOURCE_ALLOW_FILE,
        allow_private=settings.SVC_SOURCE_ALLOW_PRIVATE,
        resolve_timeout=min(60.0, timeout),
        fetch_timeout=timeout,
        max_bytes=settings.WORKSPACE_SOURCE_MAX_BYTES,
        extra_ca_file=settings.SVC_EXTRA_CA_FILE or None,
    )


def lease_duration() -> timedelta:
    """Return how long a claim lasts without a renewal."""
    return timedelta(milliseconds=settings.WORKSPACE_BUILD_JOB_LEASE_DURATION_MS)
