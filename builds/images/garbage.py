"""Removing the images that nobody needs any more, from the registry and from this engine, by age.

An image is needed by a job that is queued to launch it or at work with it, by a workspace that runs
from it, and by one that can be started again: its latest sandbox's latest image. Everything else
goes when it was not needed for as long as the operator keeps images. Only what this installation
published is looked at, and a manifest that somebody else has tagged stays.

While a job publishes into a repository it shares that repository's lock, from the look for an image
to reuse until its row says which one it has; nothing is removed from a repository that is shared.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from django.conf import settings
from django.db.models import F, Max
from django.db.models.functions import Greatest, Now

from builds.images.compiler import Compiler, repository_lock
from builds.images.engine_images import PulledImage
from controlplane.database.locks import try_advisory_lock
from registries.client import RegistryClient, RegistryError
from workspaces.models import BuildJob
from workspaces.models.build_jobs import BuildJobQuerySet

log = structlog.get_logger(__name__)

Image = tuple[str, str]
"""Digest and repository."""

IMAGES_AT_A_TIME = 100
"""How many manifests one pass removes at the most."""

IMAGES_LOOKED_AT = 100
"""How many images one pass looks at; the next one goes on from there, and then begins again."""


@dataclass(slots=True, kw_only=True)
class ImageKeeper:
    """Removes images for one installation; one worker at a time does each engine and registry."""

    compiler: Compiler
    registry: RegistryClient
    instance_id: str
    keep: timedelta
    _refuses: bool = field(default=False, init=False)
    """The registry deletes nothing; said once for each process."""
    _looked_up_to: Image | None = field(default=None, init=False)
    """The last image that was looked at; none when a pass came to the end."""
    _tagged_by_others: set[tuple[str, str]] = field(default_factory=set, init=False)

    def tidy(self, stopped: threading.Event) -> None:
        """Remove what was not needed for long enough; one of both may be away."""
        with try_advisory_lock(f"images-of:{self.instance_id}:registry") as held:
            if held and not self._refuses:
                try:
                    self._tidy_registry(stopped)
                except RegistryError as exc:
                    log.warning("registry_not_tidied", reason=exc.detail)
        self._tidy_engine(stopped)

    # ------------------------------------------------------------ the registry

    def _tidy_registry(self, stopped: threading.Event) -> None:
        images, self._looked_up_to = long_unneeded(self._looked_up_to, keep=self.keep)
        removed = 0
        for digest, repository in images:
            if stopped.is_set() or self._refuses:
                break
            if (repository, digest) not in self._tagged_by_others:
                with try_advisory_lock(repository_lock(repository)) as held:
                    removed += held and self._remove_manifest(repository, digest)
        if removed:
            log.info("images_removed_from_registry", images=removed)

    def _remove_manifest(self, repository: str, digest: str) -> bool:
        """Remove a manifest with its tags; False when it is needed after all, or has to stay."""
        mine = _published().filter(repository=repository, published_digest=digest)
        if not mine.exists() or _is_needed((digest, repository)):
            return False
        try:
            if self._somebody_tagged(repository, digest):
                self._tagged_by_others.add((repository, digest))
                log.info("image_kept", repository=repository, digest=digest, reason="foreign tag")
                return False
            self.registry.delete_manifest(repository, digest)
        except RegistryError as exc:
            if exc.upstream_status not in (405, 501):
                raise
            self._refuses = True
            log.warning(
                "registry_deletes_nothing",
                hint="Images stay in the registry: its configuration forbids deletion.",
            )
            return False
        mine.update(image_removed_at=Now())
        return True

    def _somebody_tagged(self, repository: str, digest: str) -> bool:
        """Whether a tag that no job of ours was to write names the manifest."""
        tags = set(self.registry.list_tags(repository) or ())
        ours = BuildJob.objects.filter(repository=repository, tag__in=tags)
        foreign = tags - set(ours.values_list("tag", flat=True))
        return any(
            self.registry.head_manifest(repository, tag) == digest for tag in sorted(foreign)
        )

    # ------------------------------------------------------------ this engine

    def _tidy_engine(self, stopped: threading.Event) -> None:
        found = self.compiler.pulled_images({"svc.instance": self.instance_id})
        if not found:
            return
        newest = datetime.now(UTC) - self.keep
        removed = 0
        for image in found:
            if stopped.is_set():
                break
            jobs = _jobs_of(image)
            old = (jobs.aggregate(since=_SINCE)["since"] or image.created_at) < newest
            if old and not jobs.needing_their_image().exists():
                with try_advisory_lock(repository_lock(image.repository)) as held:
                    removed += held and self._remove_image(image)
        if removed:
            log.info("images_removed_from_engine", images=removed)

    def _remove_image(self, image: PulledImage) -> bool:
        needed = _jobs_of(image).needing_their_image().exists()
        return not needed and self.compiler.remove_pulled(image)


_SINCE = Max(
    Greatest(
        F("finished_at"), F("attempt__runtime__finished_at"), F("attempt__workspace__deleted_at")
    )
)
"""Since when an image that nobody needs is not needed, as far as its jobs tell."""


def long_unneeded(after: Image | None, *, keep: timedelta) -> tuple[list[Image], Image | None]:
    """Return images that nobody has needed for so long, oldest first.

    Looks at ``IMAGES_LOOKED_AT`` images behind ``after``, in the order of the index over them. The
    second value is the image to go on after; it is None when the next call begins again.

    Each image has statements of its own: for many at once the database would read all jobs, and all
    attempts and workspaces with them.
    """
    old = []
    for _ in range(IMAGES_LOOKED_AT):
        after = _next_image(after)
        if after is None:
            break
        if not _is_needed(after):
            images = _with_image(after).values("published_digest").annotate(since=_SINCE)
            aged = images.filter(since__lt=Now() - keep).values_list("since", flat=True)
            old += [(since, after) for since in aged]
    return [image for _, image in sorted(old)[:IMAGES_AT_A_TIME]], after


def _next_image(after: Image | None) -> Image | None:
    following = _published()
    if after is not None:
        digest, repository = after
        # One range of the index, and what is to be skipped at its beginning.
        following = following.filter(published_digest__gte=digest).exclude(
            published_digest=digest, repository__lte=repository
        )
    ordered = following.order_by("published_digest", "repository")
    return ordered.values_list("published_digest", "repository").first()


def _is_needed(image: Image) -> bool:
    return _with_image(image).needing_their_image().exists()


def _with_image(image: Image) -> BuildJobQuerySet:
    digest, repository = image
    jobs = BuildJob.objects.with_image()
    return jobs.filter(published_digest=digest, repository=repository)


def _jobs_of(image: PulledImage) -> BuildJobQuerySet:
    jobs = BuildJob.objects.exclude(published_digest="")
    return jobs.filter(published_digest=image.digest)


def _published() -> BuildJobQuerySet:
    return BuildJob.objects.with_image().filter(registry_id=settings.REGISTRY_NAME)
