"""The admin of what workspaces were refused."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.admin import HistoryAdmin, workspace_name
from controlplane.errors import ControlPlaneError
from workspaces.lifecycle.egress_changes import approve_proposal, dismiss_proposal
from workspaces.models import EgressProposal


@admin.register(EgressProposal)
class EgressProposalAdmin(HistoryAdmin):
    """Hosts that workspaces asked for, and the actions that allow them."""

    list_display = [
        *("host", "port", workspace_name, "status", "refusals"),
        *("first_refused_at", "last_refused_at"),
    ]
    list_prefetch_related = ["workspace"]
    list_filter = ["status", "last_refused_at"]
    id_fields = ["id", "workspace_id"]
    search_fields = ["host"]
    search_help_text = "Proposal or workspace id, or host"
    ordering = ["-id"]
    actions = ["approve", "dismiss"]

    @admin.action(permissions=["operate"], description="Approve: the workspace may reach the host")
    def approve(self, request: HttpRequest, queryset: QuerySet[EgressProposal]) -> None:
        """Add a rule for each to its workspace's policy."""
        who = request.user.get_username()
        self._each(request, queryset, approve_proposal, "approved", requested_by=who)

    @admin.action(permissions=["operate"], description="Dismiss: it stays refused")
    def dismiss(self, request: HttpRequest, queryset: QuerySet[EgressProposal]) -> None:
        """Have each proposed no more."""
        self._each(request, queryset, dismiss_proposal, "dismissed")

    def _each(
        self,
        request: HttpRequest,
        queryset: QuerySet[EgressProposal],
        decide: Any,
        done: str,
        **how: str,
    ) -> None:
        for proposal in queryset.order_by("pk"):
            try:
                decide(proposal.workspace_id, proposal.pk, owner_user_id=None, **how)
            except ControlPlaneError as exc:
                self.message_user(request, f"{proposal.host}: {exc.detail}", messages.ERROR)
            else:
                self.message_user(request, f"{proposal.host}: {done}.")
