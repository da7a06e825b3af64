"""The first part of a job: from a plan to an image in the registry that the job's row names.

The plan's hash says whether there is an image of the same plan already. It needs the sources'
commits, so these are resolved first; they are fetched only when something has to be built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog
from django.conf import settings

from builds.images.compiler import BuildError, Compiler, PublishedImage
from builds.images.work_folders import workplace
from builds.pipeline.build_record import BuildRecord, recording
from builds.pipeline.job_metrics import measured
from builds.pipeline.job_state import JobState, publication_of
from builds.pipeline.repository import (
    before_push,
    claim_repository,
    repository_kept,
    require_repository,
)
from builds.planner import ImagePlan, PlannedSource, reach_of
from controlplane.errors import ControlPlaneError
from controlplane.metrics.families import BUILDS_REUSED
from registries.client import RegistryClient
from runs.agent_archive import agent_archive, agent_digest
from scm import git
from scm.selections import SourceToken, source_token
from workspaces.egress.agreed_policy import AgreedPolicy
from workspaces.lifecycle import step_statements
from workspaces.lifecycle.sources import references_of
from workspaces.lifecycle.step_statements import Publication
from workspaces.models import BuildJob, Sandbox

log = structlog.get_logger(__name__)

CLOCKS_APART = timedelta(seconds=60)
"""How far the provider's clock may be from ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuilder:
    """Builds the images of jobs; calls may come from several threads."""

    compiler: Compiler
    registry: RegistryClient
    sources: git.SourcePolicy
    temp_root: Path
    extra_ca: bytes
    instance_id: str

    def build(
        self,
        job: JobState,
        plan: ImagePlan,
        *,
        masks: Sequence[str],
        outbound: bool,
        egress: AgreedPolicy | None = None,
    ) -> None:
        """Publish the image of ``plan`` under the job's tag, and write that to the job.

        Without ``outbound`` only packages are installed with a network; with ``egress`` the rest is
        under a policy (``Compiler.build``). ``masks`` must not be in
        the record of the build, whoever prints them.
        """
        ours = [settings.REGISTRY_PASSWORD] if settings.REGISTRY_PASSWORD else []
        secrets = [secret.encode() for secret in (*ours, *masks)]
        with repository_kept(job):
            require_repository(job)
            with recording(job.begun_with.run, job.row, secrets, cancelled=job.cancelled) as record:
                built = self._resumed(job, record) or self._publish(
                    job, plan, record, outbound=outbound, egress=egress
                )
                # The job has an image if and only if the record has how it came about.
                record.close("stopped", partial(job.publish, built))
        job.row.published_digest_reference = built.digest_reference

    def _resumed(self, job: JobState, record: BuildRecord) -> Publication | None:
        """Return the image that the workspace had, if the job is to resume it.

        One that the registry has lost is built again.
        """
        if job.attempt.relation != Sandbox.Relation.RESUME:
            return None
        earlier = job.read(lambda: BuildJob.objects.latest_published(job.attempt.sandbox))
        if earlier is None:
            return None
        job.require_lease()
        claim_repository(job)
        image = self._tag_again(job, earlier.repository, earlier.published_digest)
        if image is None:
            return None
        record.state("The published image is launched again; no build is needed.")
        return publication_of(image, earlier.plan_hash, reused=True)

    def _publish(
        self,
        job: JobState,
        plan: ImagePlan,
        record: BuildRecord,
        *,
        outbound: bool,
        egress: AgreedPolicy | None,
    ) -> Publication:
        """Return an image of ``plan``: one that is there already, else a new one."""
        fetcher = SourceFetcher(job, self.sources, record)
        resolved = {source.id: fetcher.resolve(source) for source in plan.sources}
        plan_hash = plan.fingerprint(
            {source_id: source.commit for source_id, source in resolved.items()},
            self.compiler.base_image_id(
                plan.base_image,
                log=record,
                cancelled=job.cancelled,
                before_pull=job.require_build_slot,
            ),
            agent_digest(),
            self.extra_ca,
            reach_of(plan, outbound=outbound, policy=egress.policy if egress else None),
        )
        image = self._same_plan(job, plan_hash)
        reused = image is not None
        if image is None:
            job.require_build_slot()
            image = self._compile_and_push(
                job, plan, fetcher, resolved, record, outbound=outbound, egress=egress
            )
        else:
            record.state("An image of the same plan already exists; no build is needed.")
            BUILDS_REUSED.count()
        return publication_of(image, plan_hash, reused=reused)

    def _same_plan(self, job: JobState, plan_hash: str) -> PublishedImage | None:
        """Put an image of the same plan under the job's tag; None when the registry has none."""
        owner = job.attempt.sandbox.owner_user_id
        earlier = job.read(
            lambda: step_statements.find_same_plan(job.fence, plan_hash, owner_user_id=owner)
        )
        if earlier is not None and earlier.repository_owner != owner:
            claim_repository(job)
        return None if earlier is None else self._tag_again(job, earlier.repository, earlier.digest)

    def _tag_again(self, job: JobState, repository: str, digest: str) -> PublishedImage | None:
        """Put an image of the registry under the job's tag; None when there is none.

        The repository is the owner's by now.
        """
        try:
            found = self.registry.copy(repository, digest, job.row.repository, job.row.tag)
        except ControlPlaneError as exc:
            log.warning("reuse_failed", reason=exc.detail, digest=digest)
            found = False
        if not found:
            return None
        push_registry = settings.REGISTRY_PUSH_REGISTRY
        return PublishedImage(
            reference=f"{push_registry}/{job.row.repository}:{job.row.tag}",
            digest_reference=f"{push_registry}/{job.row.repository}@{digest}",
            digest=digest,
        )

    def _compile_and_push(
        self,
        job: JobState,
        plan: ImagePlan,
        fetcher: SourceFetcher,
        resolved: Mapping[str, git.ResolvedSource],
        record: BuildRecord,
        *,
        outbound: bool,
        egress: AgreedPolicy | None,
    ) -> PublishedImage:
        with self._source_folder(job) as folder:
            checkouts = fetcher.checkout(resolved, folder)
            agent = agent_archive()
            with measured("build"):
                compiled = self.compiler.build(
                    plan,
                    checkouts=checkouts,
                    agent=agent,
                    extra_ca=self.extra_ca,
                    job_id=job.id,
                    attempt_count=job.row.attempt_count,
                    # Only what is the same for every job of this plan: a label is part of the
                    # image.
                    labels={"svc.instance": self.instance_id},
                    log=record,
                    cancelled=job.cancelled,
                    outbound=outbound,
                    egress=egress,
                )
        try:
            with measured("push"):
                return self.compiler.push(
                    compiled,
                    repository=job.row.repository,
                    tag=job.row.tag,
                    log=record,
                    cancelled=job.cancelled,
                    check=partial(before_push, job),
                )
        finally:
            self.compiler.discard(compiled)

    @contextmanager
    def _source_folder(self, job: JobState) -> Iterator[Path]:
        with ExitStack() as held:
            try:
                folder = held.enter_context(
                    workplace(self.temp_root, "sources", job.id, job.row.attempt_count)
                )
            except OSError as exc:
                raise BuildError(
                    "build-write-context-failed",
                    f"The folder for the sources could not be created: "
                    f"{exc.strerror or 'unknown error'}.",
                ) from exc
            yield folder


class SourceFetcher:
    """Resolves and checks out the sources of one job: public ones as anybody, others with a token.

    A token is asked for when it is needed, for that repository and to read only, and is shown to
    git alone, by :mod:`scm.git`. It is masked in the record before git is started. What the
    installation and the owner may do is looked at each time anew, because the job may have waited
    long.

    Its methods raise ``SourceError``, also for what has become of a selected repository since it
    was selected (:func:`scm.selections.source_token`).
    """

    def __init__(self, job: JobState, policy: git.SourcePolicy, record: BuildRecord) -> None:
        self._job = job
        self._policy = policy
        self._record = record
        self._references: Mapping[str, UUID] | None = None
        self._tokens: dict[str, SourceToken] = {}

    def resolve(self, source: PlannedSource) -> git.ResolvedSource:
        """Return the commit that a source means now.

        A selected repository is looked for where it is by now, should it have been renamed.
        """
        token = self._token(source.id)
        return git.resolve(
            token.url if token else source.url,
            source.ref,
            self._policy,
            self._job.cancelled,
            token.credential if token else None,
        )

    @measured("fetch")
    def checkout(self, sources: Mapping[str, git.ResolvedSource], folder: Path) -> dict[str, Path]:
        """Make a checkout of each source in ``folder`` and return where each one is."""
        checkouts = {}
        for source_id, source in sources.items():
            into = checkouts[source_id] = folder / source_id
            with self._record.step(
                f"source {source_id}", ["git", "fetch", source.url, source.commit]
            ):
                token = self._token(source_id)
                git.checkout(
                    source,
                    into,
                    self._policy,
                    self._job.cancelled,
                    token.credential if token else None,
                )
        return checkouts

    def _token(self, source_id: str) -> SourceToken | None:
        """Return a token that lasts for as long as a fetch may take; None for a public source."""
        attempt = self._job.attempt
        if self._references is None:
            self._references = self._job.read(lambda: references_of(attempt.sandbox_id))
        repository_id = self._references.get(source_id)
        if repository_id is None:
            return None
        token = self._tokens.get(source_id)
        needed_until = datetime.now(UTC) + timedelta(seconds=self._policy.fetch_timeout)
        if token is None or token.expires_at <= needed_until + CLOCKS_APART:
            token = self._job.read(
                lambda: source_token(repository_id, owner_user_id=attempt.sandbox.owner_user_id)
            )
            self._record.hide(token.credential.secret)
            self._tokens[source_id] = token
        return token


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
