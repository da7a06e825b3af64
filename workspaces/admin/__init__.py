"""The admin pages of workspaces, their jobs, transitions and repositories, and the workers."""

from workspaces.admin import egress, jobs, repositories, workers, workspaces

__all__ = ["egress", "jobs", "repositories", "workers", "workspaces"]
