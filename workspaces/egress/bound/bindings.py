"""Which connected accounts the rules of a policy name; those are bound, and never delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from accounts.models import ConnectedAccount
from accounts.providers import Provider
from accounts.resolution import Reference
from controlplane.errors import Fault, ValidationFailed
from workspaces.blueprint import Egress
from workspaces.egress.bound.placeholders import new_placeholder


def bound_accounts(
    egress: Egress | None,
    references: Sequence[Reference],
    *,
    pointer: str = "/spec/runtime/network/egress",
) -> dict[int, UUID]:
    """Return the account that each rule with a credential names, by the rule's number.

    ``references`` are the accounts that the workspace is given; ``pointer`` is where the policy
    stands in the request. Raises ``ValidationFailed`` for every rule that names none of them.
    """
    named = {
        number: rule.credential
        for number, rule in enumerate(egress.rules if egress is not None else ())
        if rule.credential is not None
    }
    if not named:
        return {}
    given = _by_name(references)
    faults = [
        _fault(text, given.get(text), f"{pointer}/rules/{number}/credential")
        for number, text in named.items()
        if not _can_be_bound(given.get(text))
    ]
    if faults:
        raise ValidationFailed(faults)
    return {number: given[text].account_id for number, text in named.items()}


def placeholders_for(spec: Mapping[str, Any], references: Sequence[Reference]) -> dict[UUID, str]:
    """Return a new placeholder for each account that the policy in a stored blueprint binds.

    Raises ``ValidationFailed`` as above.
    """
    bound = set(bound_accounts(egress_in(spec), references).values())
    return {
        each.account_id: new_placeholder(each.provider)
        for each in references
        if each.account_id in bound
    }


def egress_in(spec: Mapping[str, Any]) -> Egress | None:
    """Return the policy in a stored blueprint."""
    told = spec.get("runtime", {}).get("network", {}).get("egress")
    return None if told is None else Egress.model_validate(told)


def _by_name(references: Sequence[Reference]) -> dict[str, Reference]:
    """Return the accounts by everything that a rule may call them."""
    found: dict[str, Reference] = {}
    rows = ConnectedAccount.objects.filter(pk__in=[each.account_id for each in references])
    names = dict(rows.values_list("pk", "name"))
    for each in references:
        generic = each.provider == Provider.GENERIC
        found[names.get(each.account_id, "") if generic else each.provider.value] = each
    return {**found, **{str(each.account_id): each for each in references}}


def _can_be_bound(reference: Reference | None) -> bool:
    return reference is not None and reference.provider != Provider.CODEX


def _fault(text: str, reference: Reference | None, pointer: str) -> Fault:
    if reference is None:
        return Fault(
            "credential-not-given",
            f"The workspace is given no account “{text[:120]}”. Name it in credentials, and here "
            "as claude, github, its id, or the name of a generic account.",
            pointer=pointer,
        )
    return Fault(
        "not-allowed",
        "A Codex account cannot be bound: its tool renews the secret by itself. Leave credential "
        "out, and it is delivered.",
        pointer=pointer,
    )
