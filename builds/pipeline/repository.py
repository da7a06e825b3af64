"""The repository that a job publishes to: whose it is, and that nothing goes from it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from builds.images.compiler import BuildError, repository_lock
from builds.pipeline.job_state import JobState
from controlplane.database.locks import shared_advisory_lock
from workspaces.lifecycle.repository_owners import REPOSITORY_TAKEN, taken
from workspaces.models import PublishedRepository

REPOSITORY_LOCK_SECONDS = 120.0


@contextmanager
def repository_kept(job: JobState) -> Iterator[None]:
    """Have nothing removed from the job's repository until its row says which image it has."""
    with ExitStack() as held:
        try:
            held.enter_context(
                shared_advisory_lock(
                    repository_lock(job.row.repository),
                    timeout=REPOSITORY_LOCK_SECONDS,
                    cancelled=job.cancelled,
                )
            )
        except TimeoutError as exc:
            raise BuildError(
                "push-timed-out", "Removing old images of the repository took too long."
            ) from exc
        yield


def require_repository(job: JobState) -> None:
    """Raise ``BuildError`` (``repository-taken``) when another owner has published to it already.

    As it was at the job's start; who puts something there claims it.
    """
    if job.begun_with.repository_owner not in (None, job.attempt.sandbox.owner_user_id):
        raise BuildError(REPOSITORY_TAKEN, taken(job.row.repository))


def claim_repository(job: JobState) -> None:
    """Make the repository the owner's; raise ``BuildError`` (``repository-taken``) if another's.

    To be called before anything is put there.
    """
    registry_id, name = job.row.registry_id, job.row.repository
    owner = job.attempt.sandbox.owner_user_id
    claim = partial(PublishedRepository.objects.claim, registry_id, name, owner_user_id=owner)
    if not job.read(claim):
        raise BuildError(REPOSITORY_TAKEN, taken(name))


def before_push(job: JobState) -> None:
    """Raise unless the job may put something into its repository now."""
    job.require_lease()
    claim_repository(job)
