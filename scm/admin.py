"""The admin of source hosting: who may use which installation, and what the provider told us."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.admin import HistoryAdmin, pretty_json
from controlplane.errors import ControlPlaneError, ServiceUnavailable
from controlplane.http.serializers import has_control_character
from scm.models import (
    Installation,
    InstallationGrant,
    InstallationRepository,
    WebhookDelivery,
)
from scm.provider import ProviderError, Reason
from scm.services import sync_installation
from scm.webhooks import apply_delivery

_ALL_ALIKE = {
    Reason.UNREACHABLE, Reason.TIMED_OUT, Reason.TLS_FAILED, Reason.UNAUTHORIZED,
    Reason.RATE_LIMITED,
}  # fmt: skip
"""Failures of the provider that the next installation would meet as well."""


class GrantForm(forms.ModelForm):  # type: ignore[type-arg]  # no generic at run time
    """Grants an installation to an owner, by the name he calls himself."""

    class Meta:
        model = InstallationGrant
        fields = ["owner_user_id"]

    def clean_owner_user_id(self) -> str:
        """Refuse what the API takes for no owner."""
        owner: str = self.cleaned_data["owner_user_id"]
        if has_control_character(owner):
            raise ValidationError("Control characters are not allowed here.")
        return owner


class GrantInline(admin.TabularInline):  # type: ignore[type-arg]  # no generic at run time
    """Who may use an installation."""

    model = InstallationGrant
    form = GrantForm
    extra = 0
    readonly_fields = ["created_at"]


@admin.register(Installation)
class InstallationAdmin(HistoryAdmin):
    """Installations as the provider has them; the grants are the operator's."""

    list_display = [
        "account_login", "external_id", "status", "holder_user_id", "repository_count", "synced_at",
    ]  # fmt: skip
    list_filter = ["status", "account_type", "repository_selection"]
    exclude = ["permissions"]
    readonly_fields = ["granted_permissions"]
    inlines = [GrantInline]
    id_fields = ["id"]
    search_fields = ["account_login", "=external_id", "holder_user_id", "grants__owner_user_id"]
    search_help_text = "Installation id, account, the provider's id or owner"
    ordering = ["-id"]
    actions = ["sync"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return all installations with the number of repositories they show."""
        present = Q(repositories__removed_at__isnull=True)
        count = Count("repositories", filter=present, distinct=True)
        rows: QuerySet[Any] = super().get_queryset(request).annotate(shown_count=count)
        return rows

    def has_change_permission(self, request: HttpRequest, obj: Installation | None = None) -> bool:
        """The columns are read-only; the grants are not."""
        return self.has_operate_permission(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the grants alone: the row as it was read may be older than it is by now."""

    @admin.display(description="repositories", ordering="shown_count")
    def repository_count(self, installation: Installation) -> int:
        """Count what it shows."""
        count: int = getattr(installation, "shown_count", 0)
        return count

    @admin.display(description="permissions")
    def granted_permissions(self, installation: Installation) -> SafeString:
        """Show what the account lets the app do."""
        return pretty_json(installation.permissions)

    @admin.action(permissions=["operate"], description="Sync: read it from the provider again")
    def sync(self, request: HttpRequest, queryset: QuerySet[Installation]) -> None:
        """Read each installation and its repositories again."""
        synced = 0
        for installation in queryset:
            try:
                sync_installation(installation.pk, owner_user_id=None)
            except ServiceUnavailable as error:
                self.message_user(request, error.detail, messages.ERROR)
                break
            except ProviderError as error:
                self.message_user(request, f"{installation}: {error.detail}", messages.ERROR)
                if error.reason in _ALL_ALIKE:
                    break
            except ControlPlaneError as error:
                self.message_user(request, f"{installation}: {error.detail}", messages.ERROR)
            else:
                synced += 1
        if synced:
            self.message_user(request, f"{synced} synced.")


@admin.register(InstallationRepository)
class InstallationRepositoryAdmin(HistoryAdmin):
    """Repositories as installations show them."""

    list_display = [
        "full_name", "installation", "is_private", "is_archived", "default_branch",
        "synced_at", "removed_at",
    ]  # fmt: skip
    list_filter = ["is_private", "is_archived", ("removed_at", admin.EmptyFieldListFilter)]
    list_select_related = ["installation"]
    id_fields = ["id", "repository_id", "installation_id"]
    search_fields = ["full_name", "=repository__external_id"]
    search_help_text = "Id of the row, the repository or the installation, or name"
    ordering = ["-id"]


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(HistoryAdmin):
    """What the provider told us, and the action that applies it again."""

    list_display = [
        "delivery_id", "event", "action", "external_installation_id", "status",
        "received_at", "processed_at",
    ]  # fmt: skip
    list_filter = ["status", "event", "received_at"]
    exclude = ["payload"]
    readonly_fields = ["stored_payload"]
    id_fields = ["id"]
    search_fields = ["=delivery_id", "=external_installation_id", "event"]
    search_help_text = "Id of the row or the delivery, the provider's installation id, or event"
    ordering = ["-id"]
    actions = ["redeliver"]

    @admin.display(description="payload")
    def stored_payload(self, delivery: WebhookDelivery) -> SafeString:
        """Show what was kept of the event."""
        return pretty_json(delivery.payload)

    @admin.action(permissions=["operate"], description="Redeliver: apply the event again")
    def redeliver(self, request: HttpRequest, queryset: QuerySet[WebhookDelivery]) -> None:
        """Apply each event again, oldest first."""
        ended: dict[str, int] = {}
        for pk in queryset.order_by("pk").values_list("pk", flat=True):
            delivery = apply_delivery(pk)
            ended[delivery.status] = ended.get(delivery.status, 0) + 1
            if delivery.status == WebhookDelivery.Status.FAILED:
                self.message_user(request, f"{delivery}: {delivery.error}", messages.ERROR)
        told = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
        self.message_user(request, f"Applied again: {told}.")
