"""The admin pages of workspaces, their jobs and transitions, and the workers."""

from workspaces.admin import jobs, workers, workspaces

__all__ = ["jobs", "workers", "workspaces"]
