"""The admin pages of workspaces, their jobs, transitions and repositories, and the workers."""

from workspaces.admin import jobs, repositories, workers, workspaces

__all__ = ["jobs", "repositories", "workers", "workspaces"]
