"""Starting an unchanged workspace again from the image that it had, without building."""

from __future__ import annotations

from workspaces.models import BuildJob, Sandbox


def published_before(sandbox: Sandbox) -> BuildJob | None:
    """Return the latest job that has published an image of ``sandbox``; None when there is none."""
    return (
        BuildJob.objects.filter(attempt__sandbox=sandbox)
        .exclude(published_digest="")
        .order_by("-pk")
        .first()
    )


def resumed(job: BuildJob) -> BuildJob | None:
    """Return the earlier job whose image ``job`` is to launch again, if it is to resume."""
    attempt = job.attempt
    if attempt.relation != Sandbox.Relation.RESUME:
        return None
    return published_before(attempt.sandbox)
