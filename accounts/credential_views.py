"""The endpoints of connected accounts, profiles and their bindings."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts import profiles
from accounts.connected import (
    connect_account,
    delete_account,
    list_accounts,
    mark_account_invalid,
)
from accounts.credential_serializers import (
    AccountRequestSerializer,
    ApprovalRequestSerializer,
    BindingListSerializer,
    BindingsRequestSerializer,
    ConnectedAccountSerializer,
    InvalidationRequestSerializer,
    ProfileSerializer,
    RenewalListSerializer,
)
from accounts.models import ConnectedAccount, CredentialBinding, Profile
from accounts.openapi import (
    APPROVE_DESCRIPTION,
    BINDINGS_DESCRIPTION,
    BINDINGS_EXAMPLES,
    CONNECT_DESCRIPTION,
    CONNECT_EXAMPLES,
    DISCONNECT_DESCRIPTION,
    INVALID_DESCRIPTION,
    PROFILES_DESCRIPTION,
    RENEWALS_DESCRIPTION,
)
from accounts.providers import Provider
from accounts.renewal import approve_renewal, list_renewals
from accounts.sealing import require_key
from controlplane.http.openapi import CONFLICTS, CREATED_LOCATION, OWNER_QUERY, OWNER_REQUIRED
from controlplane.http.pagination import list_query, page
from controlplane.http.requests import read
from controlplane.http.serializers import page_of

AccountListQuery = list_query(default=50, maximum=200)
ProfileListQuery = list_query(default=50, maximum=200)
ConnectedAccountPageSerializer = page_of(ConnectedAccountSerializer, "ConnectedAccountPage")
ProfilePageSerializer = page_of(ProfileSerializer, "ProfilePage")


class ConnectedAccountViewSet(ViewSet):
    """Connected accounts: a provider's secrets, sealed."""

    @extend_schema(
        operation_id="connectedAccounts.list",
        tags=["Connected accounts"],
        summary="List an owner's connected accounts, newest first",
        parameters=[OWNER_REQUIRED, AccountListQuery],
        responses=ConnectedAccountPageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List an owner's accounts that were not deleted, newest first."""
        given = read(request, query=AccountListQuery, owner_required=True)
        rows = list_accounts(owner_user_id=given.required_owner)
        query = given.query
        answer = page(
            rows, limit=query["limit"], cursor=query.get("cursor"), present=_present_accounts
        )
        return Response(answer)

    @extend_schema(
        operation_id="connectedAccounts.create",
        tags=["Connected accounts"],
        summary="Connect an account",
        description=CONNECT_DESCRIPTION,
        parameters=[CREATED_LOCATION],
        examples=CONNECT_EXAMPLES,
        request=AccountRequestSerializer,
        responses={201: ConnectedAccountSerializer},
    )
    def create(self, request: Request) -> Response:
        """Seal a provider's secret; one that is connected already is replaced."""
        require_key()
        given = read(request, body=AccountRequestSerializer, owner_required=True)
        account = connect_account(
            owner_user_id=given.required_owner,
            provider=Provider(given.body["provider"]),
            name=given.body.get("name"),
            secret=given.body["secret"],
        )
        headers = {"Location": f"/v1/connected-accounts/{account.pk}"}
        return Response(ConnectedAccountSerializer(account).data, status=201, headers=headers)

    @extend_schema(
        operation_id="connectedAccounts.delete",
        tags=["Connected accounts"],
        summary="Delete a connected account and erase its secret",
        description=DISCONNECT_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses={200: ConnectedAccountSerializer},
    )
    def destroy(self, request: Request, connected_account_id: uuid.UUID) -> Response:
        """Erase the secret and show what is left."""
        account = delete_account(
            connected_account_id, owner_user_id=read(request, by_id=True).owner
        )
        return Response(ConnectedAccountSerializer(account).data)

    @extend_schema(
        operation_id="connectedAccounts.markInvalid",
        tags=["Connected accounts"],
        summary="Mark a connected account as refused by its provider",
        description=INVALID_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=InvalidationRequestSerializer,
        responses={200: ConnectedAccountSerializer},
    )
    def mark_invalid(self, request: Request, connected_account_id: uuid.UUID) -> Response:
        """Take an account out of use until it is connected again."""
        given = read(request, body=InvalidationRequestSerializer, by_id=True)
        account = mark_account_invalid(connected_account_id, owner_user_id=given.owner)
        return Response(ConnectedAccountSerializer(account).data)

    @extend_schema(
        operation_id="connectedAccounts.listRenewals",
        tags=["Connected accounts"],
        summary="List what workspaces have renewed of a connected account",
        description=RENEWALS_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses=RenewalListSerializer,
    )
    def renewals(self, request: Request, connected_account_id: uuid.UUID) -> Response:
        """List what waits for approval, the latest first."""
        owner = read(request, by_id=True).owner
        waiting = list_renewals(connected_account_id, owner_user_id=owner)
        return Response(RenewalListSerializer({"items": waiting}).data)

    @extend_schema(
        operation_id="connectedAccounts.approveRenewal",
        tags=["Connected accounts"],
        summary="Approve what a workspace has renewed",
        description=APPROVE_DESCRIPTION,
        request=ApprovalRequestSerializer,
        responses={200: ConnectedAccountSerializer},
    )
    def approve_renewal(
        self, request: Request, connected_account_id: uuid.UUID, renewal_id: uuid.UUID
    ) -> Response:
        """Put a renewed secret in the place of the account's."""
        given = read(request, body=ApprovalRequestSerializer, owner_required=True)
        account = approve_renewal(
            connected_account_id, renewal_id, owner_user_id=given.required_owner
        )
        return Response(ConnectedAccountSerializer(account).data)


def _present_accounts(rows: Sequence[ConnectedAccount]) -> list[Any]:
    return list(ConnectedAccountSerializer(rows, many=True).data)


class ProfileViewSet(ViewSet):
    """Profiles, and the accounts that they give."""

    @extend_schema(
        operation_id="profiles.list",
        tags=["Profiles"],
        summary="List an owner's profiles, newest first",
        description=PROFILES_DESCRIPTION,
        parameters=[OWNER_REQUIRED, ProfileListQuery],
        responses=ProfilePageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List an owner's profiles; one called ``default`` is always there."""
        given = read(request, query=ProfileListQuery, owner_required=True)
        rows, default = profiles.list_profiles(owner_user_id=given.required_owner)
        answer = page(
            rows,
            limit=given.query["limit"],
            cursor=given.query.get("cursor"),
            present=_present_profiles,
            oldest=default,
        )
        return Response(answer)

    @extend_schema(
        operation_id="profiles.getCredentialBindings",
        tags=["Profiles"],
        summary="Read which accounts a profile gives",
        parameters=[OWNER_QUERY],
        responses=BindingListSerializer,
    )
    def credential_bindings(self, request: Request, profile_id: uuid.UUID) -> Response:
        """List what a profile gives, with accounts that became invalid or were deleted."""
        profile = profiles.get_profile(profile_id, owner_user_id=read(request, by_id=True).owner)
        return _bindings(profiles.bindings_of(profile))

    @extend_schema(
        operation_id="profiles.replaceCredentialBindings",
        tags=["Profiles"],
        summary="Replace the accounts that a profile gives",
        description=BINDINGS_DESCRIPTION,
        examples=BINDINGS_EXAMPLES,
        request=BindingsRequestSerializer,
        responses={200: BindingListSerializer, **CONFLICTS},
    )
    def replace_credential_bindings(self, request: Request, profile_id: uuid.UUID) -> Response:
        """Replace the whole set at once, or the account of one provider."""
        given = read(request, body=BindingsRequestSerializer, owner_required=True)
        owner = given.required_owner
        if "bindings" in given.body:
            wanted = [_wanted(entry) for entry in given.body["bindings"]]
            rows = profiles.replace_bindings(profile_id, wanted, owner_user_id=owner)
        else:
            provider = Provider(given.body["provider"])
            one = _wanted(given.body) if given.body["connected_account_id"] else None
            rows = profiles.replace_binding(profile_id, provider, one, owner_user_id=owner)
        return _bindings(rows)


def _present_profiles(rows: Sequence[Profile]) -> list[Any]:
    return list(ProfileSerializer(rows, many=True).data)


def _wanted(entry: Mapping[str, Any]) -> profiles.Binding:
    return profiles.Binding(Provider(entry["provider"]), entry["connected_account_id"])


def _bindings(rows: Sequence[CredentialBinding]) -> Response:
    return Response(BindingListSerializer({"items": rows}).data)
