"""The admin of SSH keys, connected accounts and profiles. Nothing here shows a secret."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from accounts.connected import delete_account, mark_account_invalid
from accounts.models import ConnectedAccount, CredentialBinding, Profile, RenewedSecret, SshKey
from accounts.profiles import default_profile
from accounts.providers import Provider
from accounts.renewal import approve_renewal
from accounts.services import delete_ssh_key
from controlplane.admin import HistoryAdmin
from controlplane.errors import ControlPlaneError, NotFound


@admin.register(SshKey)
class SshKeyAdmin(HistoryAdmin):
    """SSH keys, with the action that takes one away."""

    list_display = ["name", "owner_user_id", "algorithm", "fingerprint", "created_at", "deleted_at"]
    list_filter = ["algorithm", ("deleted_at", admin.EmptyFieldListFilter), "created_at"]
    id_fields = ["id"]
    search_fields = ["name", "owner_user_id", "fingerprint"]
    search_help_text = "Key id, name, owner or fingerprint"
    ordering = ["-id"]
    actions = ["revoke"]

    @admin.action(permissions=["operate"], description="Delete: the key can no longer log in")
    def revoke(self, request: HttpRequest, queryset: QuerySet[SshKey]) -> None:
        """Delete each key that is active."""
        deleted = 0
        for key in queryset:
            try:
                delete_ssh_key(key.pk, owner_user_id=None)
            except NotFound:
                continue
            deleted += 1
        self.message_user(request, f"{deleted} deleted.")


@admin.register(ConnectedAccount)
class ConnectedAccountAdmin(HistoryAdmin):
    """Connected accounts without their secrets, and the actions that take them out of use."""

    list_display = [
        "provider", "name", "owner_user_id", "kind", "status", "created_at", "last_used_at",
    ]  # fmt: skip
    list_filter = ["provider", "status", "created_at"]
    exclude = ["sealed"]
    id_fields = ["id"]
    search_fields = ["name", "owner_user_id"]
    search_help_text = "Account id, name or owner"
    ordering = ["-id"]
    actions = ["mark_invalid", "erase"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ConnectedAccount], search_term: str
    ) -> tuple[QuerySet[ConnectedAccount], bool]:
        """Offer to profiles what they can give; the list itself shows accounts of every status."""
        if request.path == reverse("admin:autocomplete"):
            queryset = queryset.filter(status=ConnectedAccount.Status.ACTIVE)
        return super().get_search_results(request, queryset, search_term)

    @admin.action(permissions=["operate"], description="Mark as refused by the provider")
    def mark_invalid(self, request: HttpRequest, queryset: QuerySet[ConnectedAccount]) -> None:
        """Take accounts out of use until their owners connect them again."""
        self._each(request, queryset, mark_account_invalid, "marked invalid")

    @admin.action(permissions=["operate"], description="Delete: the secret is erased for good")
    def erase(self, request: HttpRequest, queryset: QuerySet[ConnectedAccount]) -> None:
        """Erase the secrets of accounts."""
        self._each(request, queryset, delete_account, "erased")

    def _each(
        self,
        request: HttpRequest,
        queryset: QuerySet[ConnectedAccount],
        change: Any,
        done: str,
    ) -> None:
        changed = 0
        for account_id in queryset.values_list("pk", flat=True):
            try:
                change(account_id, owner_user_id=None)
            except NotFound:
                continue
            changed += 1
        self.message_user(request, f"{changed} {done}.")


@admin.register(RenewedSecret)
class RenewedSecretAdmin(HistoryAdmin):
    """What workspaces have renewed, without the secrets, and the action that approves it."""

    list_display = ["account", "workspace_id", "collected_at"]
    list_select_related = ["account"]
    exclude = ["sealed"]
    id_fields = ["id", "account_id", "workspace_id"]
    search_fields = ["account__name", "account__owner_user_id"]
    search_help_text = "Renewal, account or workspace id, account's name or owner"
    ordering = ["-id"]
    actions = ["approve"]

    @admin.action(
        permissions=["operate"], description="Approve: all workspaces receive it from now on"
    )
    def approve(self, request: HttpRequest, queryset: QuerySet[RenewedSecret]) -> None:
        """Put each in the place of its account's secret."""
        for renewal in queryset.order_by("pk"):
            try:
                approve_renewal(renewal.account_id, renewal.pk, owner_user_id=None)
            except ControlPlaneError as exc:
                self.message_user(request, f"{renewal.pk}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"{renewal.pk}: approved.")


class BindingForm(forms.ModelForm):  # type: ignore[type-arg]  # no generic at run time
    """Binds an account to a profile of the same owner, as the API does."""

    class Meta:
        model = CredentialBinding
        fields = ["account"]

    def clean(self) -> dict[str, Any]:
        """Refuse another owner's account, and take over its provider."""
        cleaned = super().clean() or {}
        account, profile = cleaned.get("account"), cleaned.get("profile")
        if account is None or profile is None:
            return cleaned
        if account.owner_user_id != profile.owner_user_id:
            raise ValidationError({"account": "This account belongs to another owner."})
        # One that was bound before stays bound, as it does for the API, whatever became of it.
        is_new = "account" in self.changed_data
        if is_new and account.status != ConnectedAccount.Status.ACTIVE:
            raise ValidationError({"account": f"This account is {account.status}."})
        self.instance.provider = account.provider
        return cleaned


class BindingFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]  # no generic at run time
    """All bindings of a profile, which have to go together."""

    def clean(self) -> None:
        """Refuse a second account of a provider, but for variables."""
        super().clean()
        bound = [
            form.cleaned_data["account"].provider
            for form in self.forms
            if form.cleaned_data.get("account") and not form.cleaned_data.get("DELETE")
        ]
        for provider in set(bound) - {Provider.GENERIC.value}:
            if bound.count(provider) > 1:
                raise ValidationError(f"A profile can have at most one {provider} account.")


class BindingInline(admin.TabularInline):  # type: ignore[type-arg]  # no generic at run time
    """What a profile gives."""

    model = CredentialBinding
    form = BindingForm
    formset = BindingFormSet
    extra = 0
    autocomplete_fields = ["account"]


@admin.register(Profile)
class ProfileAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """Profiles: operators add them, describe them, and choose their accounts."""

    list_display = ["slug", "name", "owner_user_id", "status", "updated_at"]
    list_filter = ["status"]
    search_fields = ["slug", "name", "owner_user_id"]
    inlines = [BindingInline]
    show_full_result_count = False

    def get_readonly_fields(self, request: HttpRequest, obj: Profile | None = None) -> list[str]:
        """Leave an owner's profile his: its accounts are his too."""
        return [] if obj is None else ["owner_user_id", "slug"]

    def save_model(self, request: HttpRequest, obj: Profile, form: Any, change: bool) -> None:
        """Save it; ``default`` under the id that its owner was told before it was stored."""
        if not change and obj.slug == Profile.DEFAULT_SLUG:
            obj.pk = default_profile(obj.owner_user_id).pk
        super().save_model(request, obj, form, change)

    def has_delete_permission(self, request: HttpRequest, obj: Profile | None = None) -> bool:
        """Profiles are archived."""
        return False
