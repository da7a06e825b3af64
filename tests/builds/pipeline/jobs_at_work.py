"""Jobs under way, and what their rows say."""

from __future__ import annotations

from django.db.models.functions import Now

from builds.pipeline.job_state import JobState
from builds.pipeline.runner import JobRunner
from runs.models import Run
from tests.factories import LEASE, claim
from workspaces.models import BuildJob, WorkspaceEvent


def work(runner: JobRunner, job: BuildJob, worker_id: str = "worker-a") -> None:
    """Claim a job and bring it to its end."""
    state = JobState.claim(job.pk, worker_id=worker_id, lease=LEASE)
    assert state is not None
    runner.run(state)


def events(job: BuildJob) -> list[str]:
    """What the workspace's history tells, in order."""
    found = WorkspaceEvent.objects.filter(workspace_id=job.attempt.workspace_id)
    return list(found.order_by("pk").values_list("type", flat=True))


def states(job: BuildJob) -> tuple[str, str, str, str]:
    """The states of job, attempt, sandbox and boot run."""
    job = BuildJob.objects.select_related("attempt__sandbox").get(pk=job.pk)
    run = Run.objects.get(pk=job.attempt.run_id)
    return job.status, job.attempt.status, job.attempt.sandbox.status, run.status


def take_over(job: BuildJob) -> None:
    """Let the lease expire and have another worker claim the job."""
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=Now())
    claim(job, "worker-b")
