"""What the admin pages of all apps share: history is read, never edited."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString


class HistoryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no generic at run time
    """Shows rows and lets nobody add, change or delete them by hand."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Rows come from the API and the workers alone."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are looked at."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows stay."""
        return False


def pretty_json(value: object) -> SafeString:
    """Return ``value`` as indented JSON for a read-only field."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return format_html('<pre style="max-height:30em;overflow:auto">{}</pre>', text)
