"""Changing what a workspace may reach while it runs, and allowing what it was refused.

The policy is kept in the blueprint of the workspace's latest sandbox, so that a later start has it
too, and in the rows of its networks, where the egress proxy finds it within half a second.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from controlplane.errors import BadRequest, Conflict, Fault, NotFound, ValidationFailed
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint, Egress, EgressRule
from workspaces.blueprint.egress import DEFAULT_PORTS, MAX_RULES
from workspaces.egress.agreed_policy import policy_of, replace_policy
from workspaces.egress.bound.bindings import bound_accounts, egress_in
from workspaces.lifecycle.starting.start_request import check_egress
from workspaces.models import (
    EgressAuthority,
    EgressProposal,
    Sandbox,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchError

POLICY = "/spec/runtime/network/egress"


def read_policy(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> Egress:
    """Return the policy of a workspace.

    Raises ``NotFound`` (``workspace-not-found``), ``Conflict`` (``egress-policy-absent``).
    """
    workspace = workspaces.get_workspace(workspace_id, owner_user_id=owner_user_id)
    sandbox = workspace.latest_sandbox
    return _present(sandbox.spec if sandbox is not None else {})


def change_policy(
    workspace_id: uuid.UUID, *, owner_user_id: str | None, policy: object, requested_by: str = ""
) -> Egress:
    """Give a workspace another policy, from now on, and return it.

    Raises ``ValidationFailed`` too, for what is wrong with it, and for a credential of an account
    that the workspace was not given a placeholder of.
    """
    with transaction.atomic():
        sandbox = _locked(workspace_id, owner_user_id)
        present = _present(sandbox.spec)
        egress = _parsed(sandbox, policy)
        if egress != present:
            _write(sandbox, egress, requested_by=requested_by)
    return egress


def list_proposals(
    workspace_id: uuid.UUID, *, owner_user_id: str | None
) -> QuerySet[EgressProposal]:
    """Return what a workspace was refused and nobody has decided on; raise ``NotFound``."""
    workspace = workspaces.get_workspace(workspace_id, owner_user_id=owner_user_id)
    return EgressProposal.objects.filter(workspace=workspace).waiting().order_by("-pk")


def approve_proposal(
    workspace_id: uuid.UUID,
    proposal_id: uuid.UUID,
    *,
    owner_user_id: str | None,
    ports: Sequence[int] | None = None,
    requested_by: str = "",
) -> Egress:
    """Add a rule for what a workspace was refused, and return the policy with it.

    Without ``ports`` it is for the port that was refused; for 443 where only the name was. Raises
    ``NotFound`` (``workspace-not-found``, ``egress-proposal-not-found``) and ``Conflict``
    (``egress-policy-absent``, ``egress-rules-full``).
    """
    with transaction.atomic():
        sandbox = _locked(workspace_id, owner_user_id)
        proposal = _waiting(workspace_id, proposal_id)
        present = _present(sandbox.spec)
        if len(present.rules) >= MAX_RULES:
            raise Conflict(
                f"The policy has {MAX_RULES} rules, the most that it can have: replace some of "
                "them with one.",
                code="egress-rules-full",
            )
        wanted = tuple(ports or ((proposal.port,) if proposal.port else DEFAULT_PORTS))
        rule = EgressRule(hosts=(proposal.host,), ports=wanted)
        egress = present.model_copy(update={"rules": (*present.rules, rule)})
        _write(sandbox, egress, requested_by=requested_by)
        EgressProposal.objects.filter(pk=proposal.pk).decide(EgressProposal.Status.APPROVED)
    return egress


@transaction.atomic
def dismiss_proposal(
    workspace_id: uuid.UUID, proposal_id: uuid.UUID, *, owner_user_id: str | None
) -> None:
    """Leave something refused, and propose it no more; raises ``NotFound``."""
    workspaces.get_workspace(workspace_id, owner_user_id=owner_user_id)
    proposal = _waiting(workspace_id, proposal_id)
    EgressProposal.objects.filter(pk=proposal.pk).decide(EgressProposal.Status.DISMISSED)


def _locked(workspace_id: uuid.UUID, owner_user_id: str | None) -> Sandbox:
    """Return the latest sandbox of a workspace, which nobody else changes or launches now."""
    workspaces.get_workspace(workspace_id, owner_user_id=owner_user_id)
    # Locked, as whoever starts it again does: there is no later sandbox meanwhile.
    workspace = Workspace.objects.select_for_update().filter(pk=workspace_id).first()
    if workspace is None or workspace.deleted_at is not None:
        raise _no_policy()
    found = Sandbox.objects.select_for_update().filter(pk=workspace.latest_sandbox_id).first()
    if found is None:
        raise _no_policy()
    assert isinstance(found, Sandbox)
    return found


def _waiting(workspace_id: uuid.UUID, proposal_id: uuid.UUID) -> EgressProposal:
    mine = EgressProposal.objects.filter(workspace_id=workspace_id).waiting()
    proposal = mine.select_for_update().filter(pk=proposal_id).first()
    if proposal is None:
        raise NotFound(
            "There is no such proposal, or it was already decided.",
            code="egress-proposal-not-found",
        )
    return proposal


def _present(spec: Mapping[str, Any]) -> Egress:
    egress = egress_in(spec)
    if egress is None:
        raise _no_policy()
    return egress


def _no_policy() -> Conflict:
    return Conflict(
        "The workspace was started without an egress policy, so its network cannot be given one: "
        "start it with a blueprint that has runtime.network.egress.",
        code="egress-policy-absent",
    )


def _parsed(sandbox: Sandbox, policy: object) -> Egress:
    """Return a policy that the workspace can have; raises ``ValidationFailed``."""
    try:
        blueprint = Blueprint.parse(_with(sandbox.spec, policy))
        check_egress(blueprint)
        egress = blueprint.runtime.network.egress
        if egress is None:
            raise ValidationFailed([Fault("required", "is required.", pointer=POLICY)])
        _require_usable(sandbox, egress)
    except ValidationFailed as error:
        raise ValidationFailed([_at_policy(fault) for fault in error.errors]) from error
    return egress


def _require_usable(sandbox: Sandbox, egress: Egress) -> None:
    """Raise for rules that the workspace, as it was started, cannot be held to."""
    attempt = sandbox.latest_attempt
    if attempt is None:
        return
    bound = bound_accounts(egress, workspaces.references_of(attempt))
    given = workspaces.placeholders_of(attempt)
    faults = [
        Fault(
            "not-allowed",
            "names an account whose secret the workspace was given when it started: stop it, and "
            "start it with a blueprint that has this rule.",
            pointer=f"{POLICY}/rules/{number}/credential",
        )
        for number, account_id in bound.items()
        if account_id not in given
    ]
    if faults:
        raise ValidationFailed(faults)
    sees = any(rule.sees_requests for rule in egress.rules)
    if sees and not EgressAuthority.objects.filter(pk=sandbox.workspace_id).exists():
        raise Conflict(
            "The workspace has no certificate authority, so TLS cannot be opened for rules with a "
            "credential, methods or paths: stop it, and start it again.",
            code="egress-authority-absent",
        )


def _with(spec: Mapping[str, Any], policy: object) -> dict[str, Any]:
    runtime = dict(spec.get("runtime", {}))
    network = {**runtime.get("network", {}), "egress": policy}
    return {**spec, "runtime": {**runtime, "network": network}}


def _at_policy(fault: Fault) -> Fault:
    pointer = fault.pointer.replace(POLICY, "/policy", 1)
    return Fault(fault.code, fault.detail, pointer=pointer)


def _write(sandbox: Sandbox, egress: Egress, *, requested_by: str) -> None:
    told = egress.model_dump(mode="json", by_alias=True, exclude_none=True)
    Sandbox.objects.filter(pk=sandbox.pk).update(spec=_with(sandbox.spec, told), updated_at=Now())
    attempt = sandbox.latest_attempt
    networks = 0
    if attempt is not None:
        try:
            given = workspaces.references_of(attempt)
            networks = replace_policy(attempt.pk, policy_of(egress, given))
        except LaunchError as error:
            raise BadRequest(error.message, code=error.code) from error
    workspaces.record_workspace_event(
        sandbox.workspace,
        WorkspaceEvent.Type.EGRESS_CHANGED,
        "The egress policy was changed.",
        {"policy": told, "networks": networks, "requestedBy": requested_by},
    )
