"""What the admin pages of all apps share: history is read, never edited."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.logins.forms import LoginForm

admin.site.site_header = "Control plane"
admin.site.site_title = "Control plane"
admin.site.index_title = "Workspaces and their builds"
admin.site.site_url = "/docs"
admin.site.login_form = LoginForm


class HistoryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """Shows rows and lets nobody add, change or delete them by hand."""

    class Media:
        css = {"all": ["controlplane/admin.css"]}

    show_full_result_count = False
    list_per_page = 50
    id_fields: Sequence[str] = ()
    """UUID columns, also of related rows, that a search for an id looks into."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find an id through its index; search everything else as text.

        Django compares UUID columns as text, which reads every row.
        """
        try:
            wanted = uuid.UUID(search_term.strip())
        except ValueError:
            wanted = None
        if wanted is None or not self.id_fields:
            return super().get_search_results(request, queryset, search_term)
        anywhere = Q.create([(name, wanted) for name in self.id_fields], connector=Q.OR)
        return queryset.filter(anywhere), False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Show every column, also those that Django hides because no form could edit them."""
        hidden = set(self.exclude or ())
        columns = [field.name for field in self.opts.concrete_fields if field.name not in hidden]
        return [*columns, *self.readonly_fields]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Rows come from the API and the workers alone."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are looked at."""
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Actions take the permission to change the rows; to view them is not enough."""
        codename = get_permission_codename("change", self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows stay."""
        return False


def pretty_json(value: object) -> SafeString:
    """Return ``value`` as indented JSON for a read-only field."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return format_html(
        '<pre style="margin:0;max-height:30em;overflow:auto;white-space:pre-wrap">{}</pre>', text
    )
