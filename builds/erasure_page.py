"""The admin's page for erasing an owner: it shows what would go, asks, and says what went."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from builds.erasure import Erased, StillThere, erase_owner, would_erase
from runs.record.retention import PruneUnderWay
from workspaces.models import Workspace

WAIT_SECONDS = 5.0
"""How long a request waits for workspaces to be deleted; asked again, it goes on from there."""


def erase_owner_page(request: HttpRequest) -> HttpResponse:
    """Show what an owner has; a POST that repeats the name erases it. For superusers alone."""
    if not request.user.is_superuser:
        raise PermissionDenied
    post = request.method == "POST"
    owner = (request.POST if post else request.GET).get("owner", "").strip()
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Erase an owner",
        "owner": owner,
    }
    if post and owner and request.POST.get("repeated", "").strip() == owner:
        context |= _erase(request, owner)
    elif owner:
        context["shown"] = _told(would_erase(owner))
        if post:
            context["refused"] = "The name was not repeated, so nothing was erased."
    return TemplateResponse(request, "admin/erase_owner.html", context)


def _erase(request: HttpRequest, owner: str) -> dict[str, Any]:
    """Erase as far as it goes in a moment; return what the page says of it."""
    erased = Erased()
    left = ""
    try:
        erase_owner(owner, wait_seconds=WAIT_SECONDS, erased=erased)
    except StillThere as exc:
        left = str(exc)
    except PruneUnderWay:
        left = "pruneruns is removing records. Erase again when it has finished."
    assert request.user.pk is not None
    # It does not say whose: nothing of an erased owner is kept.
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type=ContentType.objects.get_for_model(Workspace),
        object_repr="an owner",
        action_flag=DELETION,
        change_message=f"Erased: {sum(erased.rows.values())} rows. {left}".rstrip(),
    )
    return {"erased": _told(erased), "left": left}


def _told(erased: Erased) -> list[str]:
    """Return a line for each kind of row and each tag."""
    rows = [f"{name}: {count}" for name, count in sorted(erased.rows.items()) if count]
    tags = [f"tag {tag}" for tag in erased.tags]
    return rows + tags + [f"left: tag {tag}" for tag in erased.kept_tags]
