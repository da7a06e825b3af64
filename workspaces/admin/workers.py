"""The admin pages of workers and of the engines that they work with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from controlplane.admin import HistoryAdmin
from controlplane.errors import ControlPlaneError
from controlplane.work.models import Heartbeat, heartbeat_stale
from workspaces.lifecycle import engines
from workspaces.models import RuntimeInstance


@admin.register(Heartbeat)
class HeartbeatAdmin(HistoryAdmin):
    """The workers and their heartbeats, and the engines that they work with."""

    change_list_template = "admin/work/heartbeat/change_list.html"
    list_display = [
        *("worker_id", "kind", "hostname", "pid", "capacity", "draining"),
        *("seen_at", "started_at", "engine_id"),
    ]
    list_filter = ["kind", "draining", "engine_name"]
    search_fields = ["worker_id", "hostname", "engine_name", "engine_id"]
    search_help_text = "Worker, host or engine"
    ordering = ["-seen_at"]

    def get_urls(self) -> list[URLPattern]:
        """Add the engines' page."""
        page = self.admin_site.admin_view(self.engines_view)
        return [path("engines/", page, name="work_heartbeat_engines"), *super().get_urls()]

    def engines_view(self, request: HttpRequest) -> HttpResponse:
        """Show the engines; ``?engine=`` asks whether one is gone, and a POST declares it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_forget = request.user.has_perm("workspaces.change_runtimeinstance")
        stale = heartbeat_stale()
        if request.method == "POST":
            if not may_forget:
                raise PermissionDenied
            self._forget(request, request.POST.get("engine", ""), stale)
            return HttpResponseRedirect(reverse("admin:work_heartbeat_engines"))
        asked = request.GET.get("engine", "")
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Engines",
            "opts": self.opts,
            "engines": engines.engines(stale=stale),
            "may_forget": may_forget,
        }
        if asked and may_forget:
            try:
                context["asked"] = engines.look_at(asked, stale=stale)
                engines.require_forgettable(asked, stale=stale)
            except ControlPlaneError as exc:
                context["refused"] = exc.detail
        return TemplateResponse(request, "admin/work/heartbeat/engines.html", context)

    def _forget(self, request: HttpRequest, engine_id: str, stale: timedelta) -> None:
        who = request.user.get_username()
        try:
            ended = engines.forget_engine(engine_id, by=who, stale=stale)
        except ControlPlaneError as exc:
            self.message_user(request, exc.detail, messages.ERROR)
            return
        told = f"The engine {engine_id} is gone. Workspaces that have failed with it: {ended}."
        assert request.user.pk is not None
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(RuntimeInstance),
            object_id=engine_id,
            object_repr=f"engine {engine_id}",
            action_flag=CHANGE,
            change_message=told,
        )
        self.message_user(request, told)
