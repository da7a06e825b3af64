"""The admin of runs: the list, and one page that shows a run's record and replays its terminal."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, resolve, reverse
from django.utils.safestring import SafeString

from controlplane.admin import HistoryAdmin, duration, short_id, workspace_name
from controlplane.errors import ControlPlaneError
from runs.models import Run
from runs.record.reading import process_tree as processes
from runs.record.reading.summaries import one_line
from runs.services import request_cancel

WHAT_SHOWN = 60
"""How many characters of a command or prompt a list shows."""

PASSED_ON = frozenset({"timeline", "stream", "scrollback", "loss", "changes", "export"})
"""What the page reads of a run. Nothing else: who may only view runs must not reach ``attach``."""

# The player's terminal is compiled code (WebAssembly), which the pages' own policy forbids.
RECORD_PAGE_SCRIPTS = "script-src 'self' 'wasm-unsafe-eval'"


@admin.register(Run)
class RunAdmin(HistoryAdmin):
    """Runs; each with a page that shows its record."""

    list_display = [
        *("short_id", workspace_name, "mode", "what", "status", "ended"),
        *("started_at", "took", "owner_user_id", "recorder"),
    ]
    list_prefetch_related = ["workspace"]
    list_filter = ["mode", "status", "created_at"]
    id_fields = ["id", "workspace_id", "attempt_id"]
    search_fields = ["owner_user_id", "harness_id", "error_code"]
    whole_fields = ["owner_user_id"]
    search_help_text = "Run, workspace or attempt id, owner, harness or error code"
    exclude = ["sealed_input"]
    ordering = ["-id"]
    actions = ["cancel"]

    @admin.display(description="run")
    def short_id(self, run: Run) -> SafeString:
        """Show the end of the id."""
        return short_id(run.pk)

    @admin.display
    def what(self, run: Run) -> str:
        """Show the command or the prompt, or else the harness."""
        command = run.command or {}
        words = [
            str(each) for each in (command.get("executable"), *command.get("args", ())) if each
        ]
        return one_line(run.prompt or " ".join(words) or run.harness_id)[:WHAT_SHOWN]

    @admin.display(description="exit")
    def ended(self, run: Run) -> str:
        """Show the exit code, the signal, or the code of what went wrong."""
        if run.exit_signal or run.exit_code is not None:
            return run.exit_signal or str(run.exit_code)
        return run.error_code

    @admin.display
    def took(self, run: Run) -> str:
        """Show how long it ran."""
        return duration(run.started_at, run.finished_at)

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
                self.message_user(request, f"{run.pk}: cancellation requested.")

    def get_urls(self) -> list[URLPattern]:
        """Add the page of the plain fields, and what the page of the record reads."""
        own = self.admin_site.admin_view
        return [
            path("<path:object_id>/fields/", own(self.fields_view), name="runs_run_fields"),
            path("<path:object_id>/api/<path:rest>", own(self.api_view), name="runs_run_api"),
            *super().get_urls(),
        ]

    def api_view(self, request: HttpRequest, object_id: str, rest: str) -> HttpResponseBase:
        """Answer as the API does what the page reads of a run, to who may view runs.

        The API itself answers owners: where a proxy names the caller, an operator is another one.
        """
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        run = self._viewed(request, object_id)
        if rest not in PASSED_ON:
            raise Http404("The page of a run does not read this.")
        asked = resolve(f"/v1/runs/{run.pk}/{rest}")
        request.verified_owner = run.owner_user_id  # type: ignore[attr-defined]
        answer: HttpResponseBase = asked.func(request, *asked.args, **asked.kwargs)
        return answer

    def fields_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show every column of the run."""
        return super().change_view(request, object_id)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show replay, output, changes and timeline of a run, which the page reads by itself."""
        run = self._viewed(request, object_id)
        leaders, more = processes.leaders(run)
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": f"Run {run.pk}",
            "run": run,
            "open": run.status not in Run.TERMINAL,
            "what": self.what(run),
            "took": self.took(run),
            "opts": self.opts,
            "api": reverse("admin:runs_run_api", args=[run.pk, "-"]).removesuffix("/-"),
            "origin": processes.origin(run),
            "leaders": leaders,
            "more_leaders": more,
            "outputs": [leader.number for leader in leaders if not leader.terminal],
            "terminals": [leader.number for leader in leaders if leader.terminal],
        }
        response = TemplateResponse(request, "admin/runs/run/record.html", context)
        response.page_scripts = RECORD_PAGE_SCRIPTS  # type: ignore[attr-defined]
        return response

    def _viewed(self, request: HttpRequest, object_id: str) -> Run:
        """Return the run of a page; raise ``Http404`` for none, and to who may not view it."""
        try:
            run = Run.objects.filter(pk=uuid.UUID(unquote(object_id))).first()
        except ValueError:
            run = None
        if run is None or not self.has_view_permission(request, run):
            raise Http404("There is no such run.")
        return run
