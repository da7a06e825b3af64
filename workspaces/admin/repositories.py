"""The admin page of the repositories: operators hand them over, or free them for anybody."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from workspaces.models import PublishedRepository


@admin.register(PublishedRepository)
class PublishedRepositoryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """Whose a repository is. Deleting the row frees the repository; its images stay."""

    list_display = ["name", "owner_user_id", "registry_id", "claimed_at"]
    search_fields = ["name", "owner_user_id"]
    search_help_text = "Repository or owner"
    ordering = ["-id"]
    show_full_result_count = False
    readonly_fields = ["registry_id", "name", "claimed_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Owners get repositories by publishing to them."""
        return False
