"""The Django app ``runs``."""

from django.apps import AppConfig

from runs import checks as checks  # importing them registers them


class RunsConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "runs"
    verbose_name = "Runs"

    def ready(self) -> None:
        """Register the records of attempts with the app that needs them, gauges, and slots."""
        # Models cannot be imported before the apps are loaded.
        from controlplane import readiness
        from controlplane.metrics import exposition
        from runs import run_metrics, run_slots
        from runs.boot_runs import BootRuns
        from runs.record.egress_decisions import EgressDecisions
        from workspaces.egress.decided import keeping
        from workspaces.lifecycle import records

        records.register(BootRuns())
        keeping.register(EgressDecisions())
        exposition.register("runs", run_metrics.measure)
        readiness.register("slots", run_slots.check, required=False)
