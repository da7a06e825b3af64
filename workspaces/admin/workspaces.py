"""The admin of workspaces, sandboxes, attempts, runtimes and events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.admin import HistoryAdmin, duration, pretty_json, short_id, workspace_name
from controlplane.errors import ControlPlaneError
from workspaces.lifecycle.attempt_states import AttemptState, attempt_states
from workspaces.lifecycle.start import retry_sandbox
from workspaces.lifecycle.transitions import (
    NewStart,
    TransitionRequest,
    cancel_build,
    request_transition,
    start_workspace,
)
from workspaces.models import (
    Attempt,
    BuildJob,
    CredentialReference,
    RuntimeInstance,
    Sandbox,
    Transition,
    Workspace,
    WorkspaceEvent,
)
from workspaces.status import DELETED


@admin.register(Workspace)
class WorkspaceAdmin(HistoryAdmin):
    """Workspaces with the state of their latest sandbox."""

    list_display = [
        *("name", "owner_user_id", "status", "reason"),
        *("last_start", "expires_at", "created_at", "short_id"),
    ]
    list_filter = ["latest_sandbox__status", "created_at", "deleted_at"]
    id_fields = ["id"]
    search_fields = ["name", "owner_user_id"]
    whole_fields = ["owner_user_id"]
    search_help_text = "Workspace id, name or owner"
    readonly_fields = ["status", "reason", "history"]
    list_select_related = ["latest_sandbox__latest_attempt"]
    ordering = ["-id"]
    actions = ["start", "stop", "delete_workspaces"]

    @admin.display(ordering="latest_sandbox__status")
    def status(self, workspace: Workspace) -> str:
        """Show the surfaced status."""
        if workspace.deleted_at is not None:
            return DELETED
        return workspace.latest_sandbox.status if workspace.latest_sandbox else "queued"

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Ask for the reasons of all workspaces of the page at once."""
        changes = super().get_changelist_instance(request)
        attempts = [attempt for row in changes.result_list if (attempt := _latest_attempt(row))]
        states = attempt_states(attempts)
        for row in changes.result_list:
            attempt = _latest_attempt(row)
            row.state = states[attempt.pk] if attempt is not None else None
        return changes

    @admin.display
    def reason(self, workspace: Workspace) -> str:
        """Say what is waited for, or what went wrong."""
        attempt = _latest_attempt(workspace)
        if attempt is None or workspace.deleted_at is not None:
            return ""
        known: AttemptState | None = getattr(workspace, "state", None)
        state = known or attempt_states([attempt])[attempt.pk]
        error = state.to_members()["error"]
        code = state.reason.code if state.reason else error and error["code"]
        told = state.reason.message if state.reason else error and error["message"]
        return format_html('<span title="{}">{}</span>', told, code or told) if told else ""

    @admin.display(description="last start", ordering="latest_sandbox__latest_attempt__queued_at")
    def last_start(self, workspace: Workspace) -> datetime | None:
        """Show when the latest attempt was asked for."""
        attempt = _latest_attempt(workspace)
        return attempt.queued_at if attempt is not None else None

    @admin.display(description="id")
    def short_id(self, workspace: Workspace) -> SafeString:
        """Show the end of the id."""
        return short_id(workspace.pk)

    @admin.display(description="events")
    def history(self, workspace: Workspace) -> SafeString:
        """Lead to everything that belongs to it."""
        places = (
            ("events", "workspaces_workspaceevent"),
            ("attempts", "workspaces_attempt"),
            ("runs", "runs_run"),
            ("transitions", "workspaces_transition"),
            ("refused hosts", "workspaces_egressproposal"),
        )
        return format_html_join(
            " · ",
            '<a href="{}?q={}">{}</a>',
            ((reverse(f"admin:{page}_changelist"), workspace.pk, name) for name, page in places),
        )

    @admin.action(permissions=["operate"], description="Start again: resume, or else retry")
    def start(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> None:
        """Start another attempt of each workspace that has ended."""
        for workspace in queryset:
            start = NewStart(
                workspace_id=workspace.pk,
                owner_user_id=None,
                requested_by=request.user.get_username(),
                trigger_type=Attempt.TriggerType.MANUAL,
            )
            try:
                started = start_workspace(start)
            except ControlPlaneError as exc:
                self.message_user(request, f"{workspace.pk}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(
                    request, f"{workspace.pk}: job {started.answer['jobId']} is queued."
                )

    @admin.action(permissions=["operate"], description="Stop")
    def stop(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> None:
        """Have workspaces stopped, or what is built of them cancelled."""
        self._ask(request, queryset, Transition.Kind.STOP, "is being stopped")

    @admin.action(
        permissions=["operate"], description="Delete: containers and volumes; records stay"
    )
    def delete_workspaces(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> None:
        """Have workspaces deleted, whatever they are doing."""
        self._ask(request, queryset, Transition.Kind.DELETE, "is being deleted")

    def _ask(
        self, request: HttpRequest, queryset: QuerySet[Workspace], kind: Transition.Kind, told: str
    ) -> None:
        for workspace in queryset:
            transition = TransitionRequest(
                workspace_id=workspace.pk,
                kind=kind,
                owner_user_id=None,
                cause=Transition.Cause.OPERATOR,
                requested_by=request.user.get_username(),
            )
            try:
                stored = request_transition(transition)
            except ControlPlaneError as exc:
                self.message_user(request, f"{workspace.pk}: {exc.detail}", messages.ERROR)
                continue
            if stored:
                self.message_user(request, f"{workspace.pk}: {told}.")
            else:
                self.message_user(
                    request, f"{workspace.pk}: there is nothing left to do.", messages.WARNING
                )


def _latest_attempt(workspace: Workspace) -> Attempt | None:
    sandbox = workspace.latest_sandbox
    return sandbox.latest_attempt if sandbox is not None else None


class StateFilter(admin.SimpleListFilter):
    """Tells sandboxes that say how a workspace is from those that are history."""

    title = "state"
    parameter_name = "state"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Sandbox]
    ) -> list[tuple[str, str]]:
        """Offer both."""
        return [("latest", "latest of its workspace"), ("history", "superseded or deleted")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Sandbox]) -> QuerySet[Sandbox]:
        """Keep what was chosen."""
        latest = Q(workspace__latest_sandbox=F("pk"), workspace__deleted_at__isnull=True)
        if self.value() == "latest":
            return queryset.filter(latest)
        if self.value() == "history":
            return queryset.exclude(latest)
        return queryset


@admin.register(Sandbox)
class SandboxAdmin(HistoryAdmin):
    """Sandboxes, with the actions that start or stop an attempt."""

    list_display = [
        *(workspace_name, "status", "repository", "tag", "owner_user_id", "relation", "created_at"),
        "short_id",
    ]
    list_filter = ["status", StateFilter, "relation", "created_at"]
    id_fields = ["id", "workspace_id"]
    search_fields = ["owner_user_id", "repository", "tag"]
    whole_fields = ["owner_user_id"]
    search_help_text = "Sandbox or workspace id, owner, repository or tag"
    list_prefetch_related = ["workspace"]
    readonly_fields = ["blueprint"]
    exclude = ["spec"]
    ordering = ["-id"]
    actions = ["retry", "cancel"]

    @admin.display(description="id")
    def short_id(self, sandbox: Sandbox) -> SafeString:
        """Show the end of the id."""
        return short_id(sandbox.pk)

    @admin.display(description="blueprint")
    def blueprint(self, sandbox: Sandbox) -> SafeString:
        """Show the blueprint, readable."""
        return pretty_json(sandbox.spec)

    @admin.action(permissions=["operate"], description="Retry: start another attempt")
    def retry(self, request: HttpRequest, queryset: QuerySet[Sandbox]) -> None:
        """Start another attempt of each sandbox that has ended."""
        for sandbox in queryset:
            try:
                job = retry_sandbox(sandbox, requested_by=request.user.get_username())
            except ControlPlaneError as exc:
                self.message_user(request, f"{sandbox.pk}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"{sandbox.pk}: job {job.pk} is queued.")

    @admin.action(permissions=["operate"], description="Cancel the latest attempt")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Sandbox]) -> None:
        """Cancel the job of each sandbox that is not ready yet."""
        for sandbox in queryset:
            jobs = BuildJob.objects.select_related("attempt").order_by("-id")
            job = jobs.filter(attempt=sandbox.latest_attempt).first()
            if job and cancel_build(job, requested_by=request.user.get_username()):
                self.message_user(request, f"{sandbox.pk}: cancelled.")
            else:
                self.message_user(
                    request, f"{sandbox.pk}: there is nothing left to cancel.", messages.WARNING
                )


class CredentialReferenceInline(admin.TabularInline):  # type: ignore[type-arg]  # no generic
    """Which connected accounts a workspace is given, and what became of each."""

    model = CredentialReference
    verbose_name_plural = "connected accounts"
    fields = ("account", "delivered_at", "delivered_generation", "withdrawn_at")
    readonly_fields = ("account", "delivered_at", "delivered_generation", "withdrawn_at")
    extra = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[CredentialReference]:
        """Fetch the accounts along: the line of each names its own."""
        rows: QuerySet[CredentialReference] = super().get_queryset(request)
        return rows.select_related("account", "attempt")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows come from the API and the workers alone."""
        return False


@admin.register(Attempt)
class AttemptAdmin(HistoryAdmin):
    """Attempts."""

    list_display = [
        *(workspace_name, "status", "relation", "trigger_type", "error_code", "queued_at"),
        *("took", "record", "short_id"),
    ]
    list_prefetch_related = ["workspace"]
    list_filter = ["status", "relation", "trigger_type", "queued_at"]
    id_fields = ["id", "run_id", "sandbox_id", "workspace_id"]
    search_fields = ["error_code"]
    search_help_text = "Attempt, run, sandbox or workspace id, or error code"
    readonly_fields = ["blueprint", "duration_ms"]
    exclude = ["spec"]
    inlines = [CredentialReferenceInline]
    ordering = ["-id"]

    @admin.display(description="id")
    def short_id(self, attempt: Attempt) -> SafeString:
        """Show the end of the id."""
        return short_id(attempt.pk)

    @admin.display(description="took")
    def took(self, attempt: Attempt) -> str:
        """Show how long it took from the request to its end."""
        return duration(attempt.queued_at, attempt.finished_at)

    @admin.display(description="record")
    def record(self, attempt: Attempt) -> SafeString:
        """Lead to the record of build and boot."""
        place = reverse("admin:runs_run_change", args=[attempt.run_id])
        return format_html('<a href="{}">Build and boot</a>', place)

    @admin.display(description="blueprint")
    def blueprint(self, attempt: Attempt) -> SafeString:
        """Show the blueprint, readable."""
        return pretty_json(attempt.spec)


@admin.register(RuntimeInstance)
class RuntimeInstanceAdmin(HistoryAdmin):
    """Runtime instances."""

    list_display = [
        *("workspace", "status", "error_code", "launched_at", "finished_at"),
        *("reference", "engine", "disk"),
    ]
    list_prefetch_related = ["attempt__workspace"]
    list_filter = ["status", "adapter", "launched_at"]
    id_fields = ["run_id", "attempt_id"]
    search_fields = ["resource_id", "reference", "engine_id", "error_code"]
    search_help_text = "Run or attempt id, container id or name, engine, or error code"
    ordering = ["-run_id"]

    @admin.display
    def workspace(self, runtime: RuntimeInstance) -> str:
        """Name the workspace that runs in it."""
        return runtime.attempt.workspace.name

    @admin.display
    def engine(self, runtime: RuntimeInstance) -> str:
        """Show the beginning of the engine's id."""
        return runtime.engine_id[:12]

    @admin.display(ordering="disk_bytes")
    def disk(self, runtime: RuntimeInstance) -> str:
        """Show what it took of the disk when it was measured last."""
        return "" if runtime.disk_bytes is None else filesizeformat(runtime.disk_bytes)


@admin.register(WorkspaceEvent)
class WorkspaceEventAdmin(HistoryAdmin):
    """The history of workspaces."""

    list_display = ["occurred_at", "type", workspace_name, "message"]
    list_prefetch_related = ["workspace"]
    list_filter = ["type", "occurred_at"]
    id_fields = ["workspace_id", "attempt_id"]
    search_fields = ["message"]
    search_help_text = "Workspace or attempt id, or words of the message"
    readonly_fields = ["details"]
    exclude = ["data"]
    ordering = ["-id"]

    @admin.display(description="data")
    def details(self, event: WorkspaceEvent) -> SafeString:
        """Show the event's data, readable."""
        return pretty_json(event.data)
