"""The admin page of the engines that workspaces are placed on."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.admin import HistoryAdmin
from controlplane.errors import ControlPlaneError
from controlplane.work.models import heartbeat_stale
from workspaces.lifecycle import engines
from workspaces.models import Engine

GIB = 1024**3


@admin.register(Engine)
class EngineAdmin(HistoryAdmin):
    """Engines are added by ``manage.py engine``; here they are drained and given up."""

    list_display = ["name", "state", "seen_at", "memory", "cpus", "image_count", "url"]
    list_filter = ["state"]
    search_fields = ["name", "engine_id"]
    search_help_text = "Name or id"
    ordering = ["name"]
    exclude = ["certificates"]
    actions = ["drain", "undrain", "forget"]

    @admin.display(description="memory")
    def memory(self, engine: Engine) -> str:
        """Return how much memory it has."""
        return f"{engine.memory_bytes / GIB:.1f} GiB"

    @admin.display(description="images")
    def image_count(self, engine: Engine) -> int:
        """Return of how many repositories it has images."""
        return len(engine.images)

    @admin.action(permissions=["operate"], description="Drain: place nothing new there")
    def drain(self, request: HttpRequest, chosen: QuerySet[Engine]) -> None:
        """Take them out of placement; what runs there goes on."""
        self._each(request, chosen, _drained, "It takes nothing new.")

    @admin.action(permissions=["operate"], description="Undrain: place workspaces there again")
    def undrain(self, request: HttpRequest, chosen: QuerySet[Engine]) -> None:
        """Place workspaces there again."""
        self._each(request, chosen, _undrained, "It takes workspaces again.")

    @admin.action(permissions=["operate"], description="Declare gone for good: its workspaces fail")
    def forget(self, request: HttpRequest, chosen: QuerySet[Engine]) -> None:
        """Give up engines; one with workers is leaving until they have ended."""
        who = request.user.get_username()
        stale = heartbeat_stale()

        def gone(name: str) -> None:
            engines.forget_named(name, by=who, stale=stale)

        for engine in chosen:
            told, level = "It is gone; what was there has failed.", messages.INFO
            try:
                gone(engine.name)
            except engines.EngineLivesError as error:
                told, level = error.detail, messages.WARNING
            except ControlPlaneError as error:
                self.message_user(request, error.detail, messages.ERROR)
                continue
            self.log_change(request, engine, told)
            self.message_user(request, f"{engine.name}: {told}", level)

    def _each(
        self,
        request: HttpRequest,
        chosen: QuerySet[Engine],
        change: Callable[[str], None],
        told: str,
    ) -> None:
        for engine in chosen:
            try:
                change(engine.name)
            except ControlPlaneError as error:
                self.message_user(request, error.detail, messages.ERROR)
                continue
            self.log_change(request, engine, told)
            self.message_user(request, f"{engine.name}: {told}")


def _drained(name: str) -> None:
    engines.drain_engine(name, draining=True)


def _undrained(name: str) -> None:
    engines.drain_engine(name, draining=False)
