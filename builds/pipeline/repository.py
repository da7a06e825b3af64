"""The repository that a job publishes to: whose it is, and that nothing goes from it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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


def require_repository(job: JobState, *, claim: bool) -> None:
    """Raise ``BuildError`` (``repository-taken``) when the job's repository is another owner's.

    With ``claim`` it is the owner's afterwards: to be called before anything is put there.
    """
    registry_id, name = job.row.registry_id, job.row.repository
    owner = job.attempt.sandbox.owner_user_id
    repositories = PublishedRepository.objects

    def is_his() -> bool:
        if claim:
            return repositories.claim(registry_id, name, owner_user_id=owner)
        return repositories.owner_of(registry_id, name) in (None, owner)

    if not job.read(is_his):
        raise BuildError(REPOSITORY_TAKEN, taken(name))


def before_push(job: JobState) -> None:
    """Raise unless the job may put something into its repository now."""
    job.require_lease()
    require_repository(job, claim=True)
