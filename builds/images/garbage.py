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

IMAGES_AT_A_TIME = 100
"""How many manifests one pass removes at the most."""

IMAGES_LOOKED_AT = 200
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
    _looked_up_to: str = field(default="", init=False)
    """The last digest that was looked at; none when a pass came to the end."""
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
        for repository, digest in images:
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
        if not mine.unneeded_images().exists():
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
                hint="Images stay in the registry: its configuration forbids to delete them.",
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
        jobs = BuildJob.objects.filter(published_digest__in={image.digest for image in found})
        needed = set(jobs.needing_their_image().values_list("published_digest", flat=True))
        since = dict(jobs.values_list("published_digest").annotate(since=_SINCE))
        newest = datetime.now(UTC) - self.keep
        removed = 0
        for image in found:
            if stopped.is_set():
                break
            old = since.get(image.digest, image.created_at) < newest
            if old and image.digest not in needed:
                with try_advisory_lock(repository_lock(image.repository)) as held:
                    removed += held and self._remove_image(image)
        if removed:
            log.info("images_removed_from_engine", images=removed)

    def _remove_image(self, image: PulledImage) -> bool:
        jobs = BuildJob.objects.filter(published_digest=image.digest)
        return not jobs.needing_their_image().exists() and self.compiler.remove_pulled(image)


_SINCE = Max(
    Greatest(
        F("finished_at"), F("attempt__runtime__finished_at"), F("attempt__workspace__deleted_at")
    )
)
"""Since when an image that nobody needs is not needed, as far as its jobs tell."""


def long_unneeded(after: str, *, keep: timedelta) -> tuple[list[tuple[str, str]], str]:
    """Return images that nobody has needed for so long, as repository and digest, oldest first.

    Looks at ``IMAGES_LOOKED_AT`` digests behind ``after``, in the order of the index over them. The
    second value is the digest to go on after; it is empty when the next call begins again.
    """
    following = BuildJob.objects.with_image().filter(published_digest__gt=after)
    digests = following.order_by("published_digest").values_list("published_digest", flat=True)
    looked_at = list(digests.distinct()[:IMAGES_LOOKED_AT])
    unneeded = _published().filter(published_digest__in=looked_at).unneeded_images()
    images = unneeded.values_list("repository", "published_digest").annotate(since=_SINCE)
    old = images.filter(since__lt=Now() - keep).order_by("since")[:IMAGES_AT_A_TIME]
    last = looked_at[-1] if len(looked_at) == IMAGES_LOOKED_AT else ""
    return [(repository, digest) for repository, digest, _ in old], last


def _published() -> BuildJobQuerySet:
    return BuildJob.objects.with_image().filter(registry_id=settings.REGISTRY_NAME)
