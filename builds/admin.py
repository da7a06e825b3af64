"""The admin of build jobs, workers, remembered requests and packages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from builds import engines
from builds.lifecycle import cancel_build
from builds.models import (
    BuildJob,
    Intent,
    Package,
    PackageIndex,
    PackageOverride,
    SandboxRequest,
    Worker,
)
from builds.packages.sync import request_sync
from builds.services import requeue_job, retry_sandbox
from controlplane.admin import HistoryAdmin
from controlplane.errors import ControlPlaneError
from workspaces.models import RuntimeInstance

admin.site.index_template = "admin/start.html"


@admin.register(BuildJob)
class BuildJobAdmin(HistoryAdmin):
    """Build jobs, with the actions an operator has for them."""

    list_display = [
        "id",
        "status",
        "error_code",
        "repository",
        "tag",
        "attempt_count",
        "worker_id",
        "created_at",
    ]
    list_filter = ["status", "error_code", "reused", "created_at"]
    id_fields = ["id", "attempt_id", "attempt__run_id"]
    search_fields = ["repository", "worker_id", "error_code", "published_digest"]
    search_help_text = "Job, attempt or run id, repository, worker, error code or digest"
    ordering = ["-id"]
    actions = ["requeue", "cancel", "retry"]

    @admin.action(permissions=["operate"], description="Requeue: send the job's message again")
    def requeue(self, request: HttpRequest, queryset: QuerySet[BuildJob]) -> None:
        """Send the messages of unfinished jobs again."""
        for job in queryset:
            try:
                sent = requeue_job(job)
            except ControlPlaneError as exc:
                self.message_user(request, f"{job.pk}: {exc.detail}", messages.ERROR)
                continue
            if sent:
                self.message_user(request, f"{job.pk}: its message was sent again.")
            else:
                self.message_user(
                    request, f"{job.pk}: the job has ended; retry it instead.", messages.WARNING
                )

    @admin.action(permissions=["operate"], description="Cancel")
    def cancel(self, request: HttpRequest, queryset: QuerySet[BuildJob]) -> None:
        """Cancel jobs whose workspace is not ready yet."""
        for job in queryset.select_related("attempt"):
            if cancel_build(job, requested_by=request.user.get_username()):
                self.message_user(request, f"{job.pk}: cancelled.")
            else:
                self.message_user(
                    request, f"{job.pk}: nothing is left to cancel.", messages.WARNING
                )

    @admin.action(
        permissions=["operate"], description="Retry: start another attempt of the sandbox"
    )
    def retry(self, request: HttpRequest, queryset: QuerySet[BuildJob]) -> None:
        """Start another attempt for each job that has ended."""
        for job in queryset.select_related("attempt__sandbox"):
            who = request.user.get_username()
            try:
                started = retry_sandbox(job.attempt.sandbox, requested_by=who)
            except ControlPlaneError as exc:
                self.message_user(request, f"{job.pk}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"{job.pk}: job {started.pk} is queued.")


@admin.register(Worker)
class WorkerAdmin(HistoryAdmin):
    """Build workers and their heartbeats, and the engines that they are of."""

    change_list_template = "admin/builds/worker/change_list.html"
    list_display = [
        *("worker_id", "hostname", "pid", "prefetch", "draining"),
        *("seen_at", "started_at", "engine_id"),
    ]
    search_fields = ["worker_id", "hostname", "engine_id"]
    search_help_text = "Worker, host or engine"
    ordering = ["-seen_at"]

    def get_urls(self) -> list[URLPattern]:
        """Add the engines' page."""
        page = self.admin_site.admin_view(self.engines_view)
        return [path("engines/", page, name="builds_worker_engines"), *super().get_urls()]

    def engines_view(self, request: HttpRequest) -> HttpResponse:
        """Show the engines; ``?engine=`` asks whether one is gone, and a POST declares it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_forget = request.user.has_perm("workspaces.change_runtimeinstance")
        stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
        if request.method == "POST":
            if not may_forget:
                raise PermissionDenied
            self._forget(request, request.POST.get("engine", ""), stale)
            return HttpResponseRedirect(reverse("admin:builds_worker_engines"))
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
                engines.require_gone(asked, stale=stale)
            except ControlPlaneError as exc:
                context["refused"] = exc.detail
        return TemplateResponse(request, "admin/builds/worker/engines.html", context)

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


@admin.register(Intent)
class IntentAdmin(HistoryAdmin):
    """What is wanted of workspaces, and what it waits for."""

    list_display = [
        "workspace_id",
        "kind",
        "waits_code",
        "requested_at",
        "fulfilled_at",
        "requested_by",
        "cause",
        "worker_id",
    ]
    list_filter = ["kind", "cause", "waits_code", "requested_at", "fulfilled_at"]
    id_fields = ["id", "workspace_id"]
    search_fields = ["requested_by", "worker_id", "waits_code"]
    search_help_text = "Intent or workspace id, who asked, worker, or what it waits for"
    ordering = ["-id"]


@admin.register(SandboxRequest)
class SandboxRequestAdmin(HistoryAdmin):
    """Remembered requests with an idempotency key."""

    list_display = ["key", "owner_user_id", "sandbox_id", "publish_failed", "created_at"]
    list_filter = ["publish_failed", "created_at"]
    id_fields = ["sandbox_id"]
    search_fields = ["key", "owner_user_id"]
    search_help_text = "Key, owner or sandbox id"
    ordering = ["-id"]


@admin.register(PackageOverride)
class PackageOverrideAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """What operators say names mean; it counts from the next request on."""

    list_display = ["name", "family", "packages", "note", "updated_at"]
    list_filter = ["family"]
    search_fields = ["name", "packages", "note"]
    search_help_text = "Name, package or note"
    ordering = ["name", "family"]
    fields = ["name", "family", "packages", "note"]


@admin.register(PackageIndex)
class PackageIndexAdmin(HistoryAdmin):
    """When each distribution's index was read, and how that went."""

    list_display = [
        "family",
        "packages",
        "architecture",
        "read_at",
        "tried_at",
        "failures",
        "requested_at",
    ]
    ordering = ["family"]
    actions = ["sync"]

    @admin.action(
        permissions=["operate"], description="Sync: have a build worker read the index anew"
    )
    def sync(self, request: HttpRequest, queryset: QuerySet[PackageIndex]) -> None:
        """Ask the workers; they do it within PACKAGE_SYNC_INTERVAL_MS."""
        for index in queryset:
            request_sync(index.family)
            self.message_user(request, f"{index.family}: a build worker will read it.")


@admin.register(Package)
class PackageAdmin(HistoryAdmin):
    """The packages of every index."""

    list_display = ["name", "family", "repository", "versions", "providers"]
    list_filter = ["family", "virtual"]
    search_fields = ["folded__startswith"]
    search_help_text = "Beginning of a name"
    ordering = ["family", "name"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Package], search_term: str
    ) -> tuple[QuerySet[Package], bool]:
        """Find names whatever their capitals, through the index of folded names."""
        return super().get_search_results(request, queryset, search_term.lower())
