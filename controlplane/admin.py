"""What the admin pages of all apps share: history is read, never edited."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from controlplane.logins.forms import LoginForm

admin.site.site_header = "Control plane"
admin.site.site_title = "Control plane"
admin.site.index_title = "Workspaces and their builds"
admin.site.site_url = "/docs"
admin.site.login_form = LoginForm
# The lists need the width; every page is two clicks from the start page.
admin.site.enable_nav_sidebar = False


MOST_LISTED = 10_000
"""How many rows the pages of a list lead to."""

LOOKED_THROUGH = 20_000
"""How many of the newest rows a search for words looks through."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # no generic at run time
    """Counts no further than the pages lead: counting a growing table reads all of it."""

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, at most ``MOST_LISTED``."""
        rows: Any = self.object_list
        return min(int(rows.order_by()[: MOST_LISTED + 1].count()), MOST_LISTED)


class HistoryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """Shows rows and lets nobody add, change or delete them by hand."""

    class Media:
        css = {"all": ["controlplane/admin.css"]}

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    id_fields: Sequence[str] = ()
    """UUID columns, also of related rows, that a search for an id looks into."""
    whole_fields: Sequence[str] = ()
    """Indexed text columns: who searches for all of a value finds every row that has it."""

    list_prefetch_related: Sequence[str] = ()
    """Relations that a list shows something of: read for the rows of the page alone. A join
    (``list_select_related``) may have PostgreSQL read all of the other table."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, with what the list shows of others read along."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.prefetch_related(*self.list_prefetch_related)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Say how far a search for words looks."""
        changes = super().get_changelist_instance(request)
        if changes.search_help_text:
            changes.search_help_text += f" (words: in the newest {LOOKED_THROUGH:,} rows)"
        return changes

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find an id or a whole value through its index; search the newest rows for all else.

        Django compares UUID columns as text, which reads every row; so do words in a text.
        """
        try:
            wanted = uuid.UUID(search_term.strip())
        except ValueError:
            wanted = None
        if wanted is not None and self.id_fields:
            anywhere = Q.create([(name, wanted) for name in self.id_fields], connector=Q.OR)
            return queryset.filter(anywhere), False
        for name in self.whole_fields:
            whole = Q((name, search_term.strip()))
            if self.model._default_manager.filter(whole).exists():
                return queryset.filter(whole), False
        newest = queryset if not search_term else queryset.filter(self._among_the_newest())
        return super().get_search_results(request, newest, search_term)

    def _among_the_newest(self) -> Q:
        ids = self.model._default_manager.order_by("-pk").values_list("pk", flat=True)
        oldest = ids[LOOKED_THROUGH - 1 : LOOKED_THROUGH].first()
        return Q() if oldest is None else Q(pk__gte=oldest)

    def action_checkbox(self, obj: Any) -> SafeString:
        """Return the checkbox of a row as Django does, which renders a template for each."""
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            obj.pk,
            format_html(gettext("Select this object for an action - {}"), str(obj)),
        )

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


@admin.display(description="workspace")
def workspace_name(row: Any) -> str:
    """Return the name of the workspace that a row belongs to."""
    return str(row.workspace.name)


def short_id(value: uuid.UUID) -> SafeString:
    """Return the end of an id for a list; all of it is shown when pointed at.

    Ids of rows made in the same minute begin alike, so it is the end that tells them apart.
    """
    return format_html('<span class="short-id" title="{}">…{}</span>', value, str(value)[-12:])


def duration(begin: datetime | None, end: datetime | None) -> str:
    """Return the time between, for a list: ``0.4 s``, ``12 s``, ``3:07 min``, ``2:05 h``."""
    if begin is None or end is None:
        return "-"
    seconds = max((end - begin).total_seconds(), 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02} min"
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02} h"


def pretty_json(value: object) -> SafeString:
    """Return ``value`` as indented JSON for a read-only field."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return format_html(
        '<pre style="margin:0;max-height:30em;overflow:auto;white-space:pre-wrap">{}</pre>', text
    )
