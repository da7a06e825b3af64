"""The admin pages of workspaces, their jobs, transitions and repositories; workers, engines."""

from workspaces.admin import engine_list, jobs, repositories, workers, workspaces

__all__ = ["engine_list", "jobs", "repositories", "workers", "workspaces"]
