"""The Django app ``workspaces``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from accounts.sealing import Rotated


class WorkspacesConfig(AppConfig):
    """Registers the app with Django."""

    name = "workspaces"
    verbose_name = "Workspaces"

    def ready(self) -> None:
        """Add gauges of queue, transitions and workspaces, the charts', and what others ask."""
        # Models cannot be imported before the apps are loaded.
        from accounts.sealing import rotated_too
        from controlplane import readiness
        from controlplane.metrics import gauges, samples
        from registries import own_repositories
        from workspaces import minute_counts
        from workspaces.lifecycle.enforcement import isolation
        from workspaces.models import Engine, PublishedRepository
        from workspaces.queue_metrics import measure
        from workspaces.warm_pool import pool_check

        rotated_too["authorities of workspaces"] = _rotate_authorities
        own_repositories.register(PublishedRepository.objects.owner_of)
        gauges.register("builds", measure)
        samples.register("start_seconds", minute_counts.start_seconds)
        samples.register("failures", minute_counts.failures)
        readiness.register_engines(Engine.objects.served)
        readiness.register("isolation", isolation.check, required=isolation.bound_wide)
        readiness.register("egress", isolation.check_egress, required=False)
        readiness.register("warmPool", pool_check.check, required=False)


def _rotate_authorities(dry_run: bool) -> Rotated:
    # It is asked for by one command only, and certificates are much to load.
    from workspaces.egress.bound.authorities import rotate_authorities

    return rotate_authorities(dry_run)
