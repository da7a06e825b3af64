"""The admin of build jobs, workers, remembered requests and packages."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin import HistoryAdmin, duration, workspace_name
from controlplane.errors import ControlPlaneError
from workspaces.lifecycle.queueing import requeue_job
from workspaces.lifecycle.start import retry_sandbox
from workspaces.lifecycle.transitions import cancel_build
from workspaces.models import (
    BuildJob,
    Package,
    PackageIndex,
    PackageOverride,
    SandboxRequest,
    Transition,
)
from workspaces.packages.sync import request_sync

admin.site.index_template = "admin/start.html"


@admin.register(BuildJob)
class BuildJobAdmin(HistoryAdmin):
    """Build jobs, with the actions an operator has for them."""

    list_display = [
        *("workspace", "status", "error_code", "repository"),
        *("tries", "worker_id", "created_at", "took", "record"),
    ]
    list_prefetch_related = ["attempt__workspace"]
    list_filter = ["status", "error_code", "lane", "reused", "created_at"]
    id_fields = ["id", "attempt_id", "attempt__run_id"]
    search_fields = ["repository", "worker_id", "error_code", "published_digest"]
    search_help_text = "Job, attempt or run id, repository, worker, error code or digest"
    ordering = ["-id"]
    actions = ["requeue", "cancel", "retry"]

    @admin.display
    def workspace(self, job: BuildJob) -> str:
        """Name the workspace that it is for."""
        return job.attempt.workspace.name

    @admin.display
    def tries(self, job: BuildJob) -> int:
        """Count how often it was claimed."""
        return job.attempt_count

    @admin.display
    def took(self, job: BuildJob) -> str:
        """Show how long it was worked on."""
        return duration(job.started_at, job.finished_at)

    @admin.display
    def record(self, job: BuildJob) -> SafeString:
        """Lead to the record of build and boot."""
        place = reverse("admin:runs_run_change", args=[job.attempt.run_id])
        return format_html('<a href="{}">Output</a>', place)

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
                    request, f"{job.pk}: there is nothing left to cancel.", messages.WARNING
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


@admin.register(Transition)
class TransitionAdmin(HistoryAdmin):
    """What is wanted of workspaces, and what it waits for."""

    list_prefetch_related = ["workspace"]
    list_display = [
        workspace_name,
        "kind",
        "waiting_code",
        "requested_at",
        "finished_at",
        "requested_by",
        "cause",
        "worker_id",
    ]
    list_filter = ["kind", "cause", "waiting_code", "requested_at", "finished_at"]
    id_fields = ["id", "workspace_id"]
    search_fields = ["requested_by", "worker_id", "waiting_code"]
    search_help_text = "Transition or workspace id, who asked, worker, or what it waits for"
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
        permissions=["operate"], description="Sync: have a build worker read the index again"
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
