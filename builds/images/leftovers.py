"""Removing what a worker that was killed left behind on its engine and in its folder.

A worker removes its own things in every outcome but SIGKILL. What it then leaves is a folder that
nobody holds any more, an image under the name of a claim that is over, an image under the name it
was about to push, and the container of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import structlog
from django.db.models.functions import Now

from builds.images.compiler import Compiler
from builds.images.engine_images import BuiltImage, StepContainer
from builds.images.work_folders import sweep_leftovers
from controlplane.database.locks import try_advisory_lock
from workspaces.models import BuildJob

log = structlog.get_logger(__name__)


def remove_leftovers(
    compiler: Compiler, temp_root: Path, *, instance_id: str, grace: timedelta
) -> int:
    """Remove folders and image names that no claim needs; return how many.

    ``grace`` is how old a folder must be, so that one that is just being made is left alone.
    """
    removed = sweep_leftovers(temp_root, grace.total_seconds())
    labels = {"svc.instance": instance_id}
    for image in _without_a_claim(compiler.built_images(labels)):
        compiler.discard(image)
        removed += 1
    for step in _of_claims_that_are_over(compiler.step_containers()):
        compiler.containers.remove(step.name)
        removed += 1
    for name in compiler.names_to_push(labels):
        # Whoever pushes this name holds its lock and takes the name away afterwards.
        with try_advisory_lock(name) as held:
            if held:
                compiler.forget(name)
                removed += 1
    if removed:
        log.info("leftovers_removed", things=removed)
    return removed


def _without_a_claim(images: list[BuiltImage]) -> list[BuiltImage]:
    """Return the images that were built for claims that are not the present one of their job."""
    claims = _present_claims(image.owner[0] for image in images)
    return [image for image in images if image.owner not in claims]


def _of_claims_that_are_over(steps: list[StepContainer]) -> list[StepContainer]:
    """Return those of jobs of ours; another installation has others."""
    if not steps:
        return []
    ours = set(BuildJob.objects.filter(pk__in={each.owner[0] for each in steps}).values_list("pk"))
    claims = _present_claims(each.owner[0] for each in steps)
    return [each for each in steps if (each.owner[0],) in ours and each.owner not in claims]


def _present_claims(jobs: Iterable[UUID]) -> set[tuple[UUID, int]]:
    wanted = set(jobs)
    if not wanted:
        return set()
    running = BuildJob.objects.filter(
        pk__in=wanted, status=BuildJob.Status.RUNNING, lease_expires_at__gt=Now()
    )
    return set(running.values_list("pk", "attempt_count"))
