"""The admin pages of workspaces, their jobs, transitions and repositories, and the workers."""

from workspaces.admin import egress_proposals, jobs, repositories, workers, workspaces

__all__ = ["egress_proposals", "jobs", "repositories", "workers", "workspaces"]
