"""The Django app ``runs``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.apps import AppConfig

from runs import checks as checks  # importing them registers them

if TYPE_CHECKING:
    from controlplane.metrics.gauges import Gauge
    from runs.boot_runs import BootRuns
    from runs.record.egress_decisions import EgressDecisions


class RunsConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "runs"
    verbose_name = "Runs"

    def ready(self) -> None:
        """Register the records of attempts with the app that needs them, gauges, and slots."""
        # Models cannot be imported before the apps are loaded.
        from controlplane import readiness
        from controlplane.metrics import gauges
        from workspaces.egress.decided import keeping
        from workspaces.lifecycle import records

        records.register(_boot_runs)
        keeping.register(_egress_decisions)
        gauges.register("runs", _measure)
        readiness.register("slots", _slots, required=False)


# What is registered is imported when it is asked for: most processes never ask.


def _boot_runs() -> BootRuns:
    from runs.boot_runs import BootRuns

    return BootRuns()


def _egress_decisions() -> EgressDecisions:
    from runs.record.egress_decisions import EgressDecisions

    return EgressDecisions()


def _measure(*, stale: timedelta) -> list[Gauge]:
    from runs import run_metrics

    return run_metrics.measure(stale=stale)


def _slots() -> str:
    from runs import run_slots

    return run_slots.check()
