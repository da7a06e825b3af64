"""The message of the build queue."""

from __future__ import annotations

from controlplane.work.id_messages import IdMessage

BUILD_REQUESTED = IdMessage(
    kind="sandbox-build-job.requested", member="jobId", queue_setting="WORKSPACE_BUILD_QUEUE"
)
"""A build job waits for a worker."""
