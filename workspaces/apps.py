"""The Django app ``workspaces``."""

from django.apps import AppConfig


class WorkspacesConfig(AppConfig):
    """Registers the app with Django."""

    name = "workspaces"
    verbose_name = "Workspaces"

    def ready(self) -> None:
        """Add the gauges of queue, transitions and workspaces to the metrics."""
        # Models cannot be imported before the apps are loaded.
        from controlplane.metrics.exposition import register
        from workspaces.queue_metrics import measure

        register("builds", measure)
