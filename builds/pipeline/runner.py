"""What a worker does with a job it has claimed: build its image, launch its workspace.

Every step may be repeated by another worker after a crash at any point: the layers of a build are
cached, a push replaces what the tag names, a published job goes on at its launch, and a launch
adopts the container that the run already has. All writes are fenced (:class:`JobState`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from builds.images.leftovers import remove_leftovers
from builds.pipeline.build import ImageBuilder
from builds.pipeline.job_metrics import counted
from builds.pipeline.job_slots import BuildSlotNeeded
from builds.pipeline.job_state import JobState, ShutdownError
from builds.pipeline.launch import JobCredentials, WorkspaceLauncher
from builds.planner import Catalogue, plan
from workspaces.blueprint import Blueprint
from workspaces.egress.agreed_policy import egress_of
from workspaces.models import LeaseLost


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunner:
    """Runs one claimed job at a time per call; calls may come from several threads."""

    catalogue: Catalogue
    builder: ImageBuilder
    launcher: WorkspaceLauncher

    @counted()
    def run(self, job: JobState) -> None:
        """Bring ``job`` to its end: published and launched, or failed.

        Raises what made it fail after the failure was written; ``LeaseLost`` when another
        worker or an operator took the job away; ``ShutdownError`` when it was given back;
        ``BuildSlotNeeded`` when it waits for a build slot.
        """
        try:
            self._run(job)
        except LeaseLost:
            job.end_cancelled_boot_run()
            raise

    def _run(self, job: JobState) -> None:
        job.require_attempts_left()
        try:
            job.start()
            self._build_and_launch(job)
        except LeaseLost:
            raise
        except BuildSlotNeeded:
            job.wait_for_build_slot()
            raise
        except Exception as exc:
            if job.shutdown:
                job.give_back()
                raise ShutdownError from exc
            if job.cancelled.is_set():
                raise LeaseLost("the work was stopped") from exc
            job.fail(exc)
            raise

    def _build_and_launch(self, job: JobState) -> None:
        blueprint = Blueprint.parse(job.attempt.spec)
        image_plan = plan(blueprint, blueprint.target.os.family, self.catalogue)
        credentials = JobCredentials.of(job)
        if not job.is_built:
            # Accounts that do not open fail the job here, and not after a long build.
            outbound = blueprint.runtime.network.outbound
            self.builder.build(
                job,
                image_plan,
                masks=credentials.masks(),
                outbound=outbound,
                egress=job.read(
                    lambda: egress_of(
                        job.attempt,
                        blueprint.runtime.network.egress,
                        credentials.references,
                        is_build=True,
                    )
                ),
            )
        self.launcher.launch(job, blueprint, image_plan, credentials)

    def tidy(self, grace: timedelta) -> None:
        """Remove what killed workers left on this engine and in this folder; look at its images."""
        builder = self.builder
        builder.compiler.look_at_base_images()
        remove_leftovers(
            builder.compiler, builder.temp_root, instance_id=builder.instance_id, grace=grace
        )
