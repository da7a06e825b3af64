"""The admin of SSH keys."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.models import SshKey
from accounts.services import delete_ssh_key
from controlplane.admin import HistoryAdmin
from controlplane.errors import NotFound


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

    @admin.action(permissions=["operate"], description="Delete: the key opens nothing from now on")
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
