"""The admin pages of workspaces, their jobs, transitions and repositories; workers, engines."""

from workspaces.admin import egress, engine_list, jobs, repositories, workers, workspaces

__all__ = ["egress", "engine_list", "jobs", "repositories", "workers", "workspaces"]
