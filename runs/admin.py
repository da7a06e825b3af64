"""The admin of runs: the list, and one page that shows a run's record and replays its terminal."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin import HistoryAdmin
from controlplane.errors import ControlPlaneError
from runs.models import Run
from runs.record.reading import process_tree as processes
from runs.services import request_cancel

# The player's terminal is compiled code (WebAssembly), which the pages' own policy forbids.
RECORD_PAGE_SCRIPTS = "script-src 'self' 'wasm-unsafe-eval'"


@admin.register(Run)
class RunAdmin(HistoryAdmin):
    """Runs; each with a page that shows its record."""

    list_display = [
        *("id", "mode", "status", "harness_id", "owner_user_id", "exit_code"),
        *("started_at", "finished_at", "recorder", "record"),
    ]
    list_filter = ["mode", "status", "created_at"]
    id_fields = ["id", "workspace_id", "attempt_id"]
    search_fields = ["owner_user_id", "harness_id", "error_code"]
    whole_fields = ["owner_user_id"]
    search_help_text = "Run, workspace or attempt id, owner, harness or error code"
    readonly_fields = ["record"]
    exclude = ["sealed_input"]
    ordering = ["-id"]
    actions = ["cancel"]

    @admin.display(description="record")
    def record(self, run: Run) -> SafeString:
        """Link to the page of the run's record."""
        return format_html(
            '<a href="{}">Timeline and replay</a>', reverse("admin:runs_run_record", args=[run.pk])
        )

    @admin.display(description="recorder")
    def recorder(self, run: Run) -> str:
        """Name the worker at an open run; one that waits for a place has none."""
        if not run.recorded or run.status in Run.TERMINAL:
            return ""
        return run.worker_id if run.lease_expires_at is not None else "none yet"

    @admin.action(permissions=["operate"], description="Cancel: stop what still runs")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        """Ask for the end of each run; the record tells how it ended."""
        for run in queryset:
            try:
                request_cancel(run)
            except ControlPlaneError as exc:
                self.message_user(request, f"{run.pk}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"{run.pk}: its end was asked for.")

    def get_urls(self) -> list[URLPattern]:
        """Add the record's page."""
        record = path(
            "<path:object_id>/record/",
            self.admin_site.admin_view(self.record_view),
            name="runs_run_record",
        )
        return [record, *super().get_urls()]

    def record_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show timeline, loss, changes and replay of a run, read through the API by the page."""
        try:
            run = Run.objects.filter(pk=uuid.UUID(unquote(object_id))).first()
        except ValueError:
            run = None
        if run is None or not self.has_view_permission(request, run):
            raise Http404("There is no such run.")
        leaders, more = processes.leaders(run)
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": f"Record of run {run.pk}",
            "run": run,
            "opts": self.opts,
            "api": f"/v1/runs/{run.pk}",
            "origin": processes.origin(run),
            "leaders": leaders,
            "more_leaders": more,
            "terminals": [leader.number for leader in leaders if leader.terminal],
        }
        response = TemplateResponse(request, "admin/runs/run/record.html", context)
        response.page_scripts = RECORD_PAGE_SCRIPTS  # type: ignore[attr-defined]
        return response
