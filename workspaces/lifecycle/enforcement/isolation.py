"""Whether workspaces and builds are kept away from the engines' machines, and who asks for it.

A workspace reaches its machine through the gateway of its network. While the API listens on
loopback that is the machine's affair; otherwise every workspace would be every owner.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from controlplane.errors import ControlPlaneError
from controlplane.settings_environment import is_loopback
from controlplane.work.models import Heartbeat, heartbeat_stale
from workspaces.models import Engine, NetworkGuardReport
from workspaces.runtimes.base import LaunchError

if TYPE_CHECKING:  # every process registers the checks below; the Docker SDK is large
    from workspaces.runtimes.docker import DockerAdapter

EVERY = timedelta(seconds=15)
"""How often each build worker looks whether the rules hold."""
FRESH = timedelta(minutes=2)
TICK_SECONDS = 0.5

log = structlog.get_logger(__name__)


class NotIsolatedError(ControlPlaneError):
    """Workspaces may reach what is not theirs; the text says where, why and what to do."""


class IsolationTask:
    """Has the engine's machine keep workspaces away, and reports whether it does."""

    def __init__(self, adapter: DockerAdapter) -> None:
        self._adapter = adapter
        self._guard = adapter.network_guard(
            allowed=settings.SVC_WORKSPACE_ALLOWED_NETWORKS,
            image=settings.SVC_NETWORK_GUARD_IMAGE,
            base_image=settings.SVC_BASE_IMAGES["debian"],
            egress_port=settings.SVC_EGRESS_PORT,
        )
        self._told = ""
        self.problem = ""
        """Why workspaces and builds were not kept away at the last look."""

    def look(self) -> None:
        """Do it once. Without an engine that answers there is nobody to keep away."""
        if settings.SVC_NETWORK_GUARD != "on":
            return
        engine_id = self._adapter.engine_id()
        try:
            enforced, detail = True, self._guard.ensure()
        except LaunchError as error:
            enforced, detail = False, error.message
        self.problem = "" if enforced else detail
        try:
            egress = ""
            self.require_egress()
        except LaunchError as error:
            egress = error.message
        NetworkGuardReport.objects.report(
            engine_id, enforced=enforced, detail=detail, egress=egress
        )
        if detail != self._told:
            log.log(20 if enforced else 40, "network_guard_checked", ok=enforced, detail=detail)
            self._told = detail

    def require(self) -> None:
        """Return when whatever is given a network now is kept away, if that is our affair.

        Raises ``network-not-guarded``.
        """
        if settings.SVC_NETWORK_GUARD == "on":
            self._guard.require()

    def require_egress(self) -> None:
        """Return when a policy of hosts would be kept on this engine's machine.

        Raises ``egress-not-enforced`` or ``network-not-guarded``.
        """
        if settings.SVC_NETWORK_GUARD != "on":
            raise LaunchError(
                "egress-not-enforced",
                "Egress policies need the rules of this installation: SVC_NETWORK_GUARD is "
                f"{settings.SVC_NETWORK_GUARD}.",
            )
        self._guard.require_egress()


def check_egress() -> str:
    """Say that every engine with a build worker enforces egress policies.

    Raises ``NotIsolatedError`` with the reason if not: workspaces with a policy do not start then.
    """
    if not settings.SVC_EGRESS_PORT:
        return "Egress policies are switched off: SVC_EGRESS_PORT is 0."
    if settings.SVC_NETWORK_GUARD != "on":
        return "Egress policies are not enforced: SVC_NETWORK_GUARD is not on."
    reports = list(NetworkGuardReport.objects.fresh(within=FRESH))
    if not reports:
        raise NotIsolatedError("No build worker reports whether egress policies are enforced.")
    for report in reports:
        if report.egress:
            engines = {each.pk for each in reports}
            raise NotIsolatedError(_told_of(report.pk, report.egress, among=engines))
    return "The egress proxy runs beside every engine."


def bound_wide() -> bool:
    """Tell whether others than this machine reach the API."""
    return _wide_host() != ""


def _wide_host() -> str:
    """Return the address at which others reach the API; the port of the admin answers it too."""
    published = [settings.SVC_PUBLISHED_HOST]
    if settings.SVC_ADMIN_PORT not in (0, settings.SVC_API_PORT, settings.SVC_WEB_PORT):
        published.append(settings.SVC_ADMIN_PUBLISHED_HOST)
    return next((host for host in published if not is_loopback(host)), "")


def check() -> str:
    """Say that every engine with a build worker isolates; raise ``NotIsolatedError`` if not."""
    if settings.SVC_NETWORK_GUARD == "external":
        return "Left to the operator, as set by SVC_NETWORK_GUARD."
    if settings.SVC_NETWORK_GUARD == "off":
        raise NotIsolatedError(
            "Workspaces can reach the engine's machine and private addresses: SVC_NETWORK_GUARD "
            "is off."
        )
    stale = heartbeat_stale()
    alive = Heartbeat.objects.build().alive(stale=stale).exclude(engine_id="")
    engines = set(alive.values_list("engine_id", flat=True))
    # What was told before this machine was started again tells nothing: its rules may be gone.
    up_for = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
    fresh = NetworkGuardReport.objects.fresh(within=min(FRESH, up_for))
    reports = {row.pk: row for row in fresh}
    if not engines:
        raise NotIsolatedError("No build worker has reported whether workspaces are isolated.")
    for engine_id in sorted(engines):
        report = reports.get(engine_id)
        if report is None:
            raise NotIsolatedError(f"No build worker of the engine {engine_id} has reported yet.")
        if not report.enforced:
            raise NotIsolatedError(_told_of(engine_id, report.detail, among=engines))
    return "Workspaces cannot reach the engines' machines or private addresses."


def _told_of(engine_id: str, detail: str, *, among: set[str]) -> str:
    """Return what was told of an engine, with its name where there are others."""
    known = Engine.objects.known().exclude(engine_id="")
    names = dict(known.values_list("engine_id", "name"))
    if len(among | names.keys()) == 1:
        return detail
    return f"Engine {names.get(engine_id, engine_id)}: {detail}"


def refuse_wide_bind(*, seconds: float) -> str:
    """Return why the API must not listen where it is told to; empty when it may.

    Build workers get so many seconds to report: they may be starting at this moment.
    """
    if not bound_wide():
        return ""
    deadline = time.monotonic() + seconds
    while True:
        try:
            check()
        except NotIsolatedError as error:
            reason = error.detail
        except (DatabaseError, InterfaceError):
            reason = (
                "The database does not answer, so it is not known whether workspaces are isolated."
            )
        else:
            return ""
        if settings.SVC_NETWORK_GUARD != "on" or time.monotonic() >= deadline:
            return (
                f"The API does not listen on {_wide_host()}: any workspace could "
                f"act for any owner. {reason} docs/operators/isolation.md says what to do."
            )
        time.sleep(TICK_SECONDS)
