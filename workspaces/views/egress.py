"""The endpoints of what a workspace may reach."""

from __future__ import annotations

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from workspaces.blueprint import Egress
from workspaces.egress_serializers import (
    ApproveEgressProposalSerializer,
    DismissEgressProposalSerializer,
    EgressProposalListSerializer,
    EgressSerializer,
    ReplaceEgressSerializer,
)
from workspaces.lifecycle.egress_changes import (
    approve_proposal,
    change_policy,
    dismiss_proposal,
    list_proposals,
    read_policy,
)
from workspaces.openapi import (
    APPROVE_EGRESS_DESCRIPTION,
    DISMISS_EGRESS_DESCRIPTION,
    EGRESS_DESCRIPTION,
    EGRESS_PROPOSALS_DESCRIPTION,
    REPLACE_EGRESS_DESCRIPTION,
)


class EgressViewSet(ViewSet):
    """The egress policies of workspaces, and what was refused because of them."""

    @extend_schema(
        operation_id="workspaces.getEgress",
        tags=["Workspaces"],
        summary="Read what a workspace may reach",
        description=EGRESS_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses=EgressSerializer,
    )
    def retrieve(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Show the policy of a workspace."""
        owner = read(request, by_id=True).owner
        return _shown(read_policy(workspace_id, owner_user_id=owner))

    @extend_schema(
        operation_id="workspaces.replaceEgress",
        tags=["Workspaces"],
        summary="Change what a workspace may reach, while it runs",
        description=REPLACE_EGRESS_DESCRIPTION,
        request=ReplaceEgressSerializer,
        responses=EgressSerializer,
    )
    def update(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Replace the policy of a workspace."""
        given = read(request, body=ReplaceEgressSerializer, owner_required=True)
        owner = given.required_owner
        policy = given.body["policy"]
        return _shown(
            change_policy(workspace_id, owner_user_id=owner, policy=policy, requested_by=owner)
        )

    @extend_schema(
        operation_id="workspaces.listEgressProposals",
        tags=["Workspaces"],
        summary="List what a workspace was refused and may be allowed",
        description=EGRESS_PROPOSALS_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses=EgressProposalListSerializer,
    )
    def list_proposals(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List what waits for a decision, the latest first."""
        owner = read(request, by_id=True).owner
        waiting = list_proposals(workspace_id, owner_user_id=owner)
        return Response(EgressProposalListSerializer({"items": waiting}).data)

    @extend_schema(
        operation_id="workspaces.approveEgressProposal",
        tags=["Workspaces"],
        summary="Allow what a workspace was refused",
        description=APPROVE_EGRESS_DESCRIPTION,
        request=ApproveEgressProposalSerializer,
        responses={200: EgressSerializer},
    )
    def approve_proposal(
        self, request: Request, workspace_id: uuid.UUID, proposal_id: uuid.UUID
    ) -> Response:
        """Add a rule for what was refused."""
        given = read(request, body=ApproveEgressProposalSerializer, owner_required=True)
        owner = given.required_owner
        ports = given.body.get("ports")
        return _shown(
            approve_proposal(
                workspace_id, proposal_id, owner_user_id=owner, ports=ports, requested_by=owner
            )
        )

    @extend_schema(
        operation_id="workspaces.dismissEgressProposal",
        tags=["Workspaces"],
        summary="Leave refused what a workspace was refused",
        description=DISMISS_EGRESS_DESCRIPTION,
        request=DismissEgressProposalSerializer,
        responses={204: None},
    )
    def dismiss_proposal(
        self, request: Request, workspace_id: uuid.UUID, proposal_id: uuid.UUID
    ) -> Response:
        """Have something proposed no more."""
        given = read(request, body=DismissEgressProposalSerializer, owner_required=True)
        dismiss_proposal(workspace_id, proposal_id, owner_user_id=given.required_owner)
        return Response(status=204)


def _shown(egress: Egress) -> Response:
    policy = egress.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Response(EgressSerializer({"policy": policy}).data)
