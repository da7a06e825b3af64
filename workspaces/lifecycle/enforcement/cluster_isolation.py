"""Whether Pods are kept away from each other and from the cluster, and who looks.

Images are built by a Docker Engine, whose machine is to be kept away from builds as it is anywhere.
"""

from __future__ import annotations

import structlog
from django.conf import settings

from workspaces.lifecycle.enforcement.isolation import IsolationTask
from workspaces.models import NetworkGuardReport
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.configured_cluster import kubernetes_adapter

NO_EGRESS = (
    "Egress policies by host name are not enforced on Kubernetes; workspaces that have one are "
    "refused."
)

log = structlog.get_logger(__name__)


class ClusterIsolation:
    """Has the cluster's network policies probed, and reports what was seen."""

    def __init__(self, builds: IsolationTask) -> None:
        self._builds = builds
        self._told: str | None = None

    def look(self) -> None:
        """Do it once."""
        self._builds.look()
        if settings.SVC_NETWORK_GUARD != "on":
            return
        adapter = kubernetes_adapter()
        engine_id = adapter.engine_id()
        problem = self._problem()
        detail = problem or self._builds.problem
        NetworkGuardReport.objects.report(
            engine_id,
            enforced=not detail,
            detail=detail or "A probe saw that the cluster enforces network policies.",
            egress=NO_EGRESS,
        )
        if problem != self._told:
            log.log(
                40 if problem else 20, "network_policies_checked", ok=not problem, detail=problem
            )
            self._told = problem

    def _problem(self) -> str:
        try:
            return kubernetes_adapter().proof.problem()
        except LaunchError as error:
            return error.message
