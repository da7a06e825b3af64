"""Profiles, and which accounts they give to the workspaces started with them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from accounts.connected import account_not_found
from accounts.models import ConnectedAccount, CredentialBinding, Profile
from accounts.providers import Provider
from controlplane.errors import Conflict, Fault, NotFound, ValidationFailed

log = structlog.get_logger(__name__)

BEFORE_ALL = datetime.fromtimestamp(0, UTC)
"""Since when every owner has a profile ``default``, until it is stored."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One account that a profile is to give, as a client names it."""

    provider: Provider
    account_id: uuid.UUID


def list_profiles(*, owner_user_id: str) -> tuple[QuerySet[Profile], Profile | None]:
    """Return an owner's profiles, and the one called ``default`` while it is not among them."""
    rows = Profile.objects.owned_by(owner_user_id)
    stored = rows.filter(slug=Profile.DEFAULT_SLUG).exists()
    return rows, None if stored else default_profile(owner_user_id)


def default_profile(owner_user_id: str) -> Profile:
    """Return the profile ``default`` as every owner has it: not stored, and without accounts.

    Its id follows from the owner, so that it is the same before and after it is stored; as a
    UUIDv7 it is older than every other one.
    """
    chance = int.from_bytes(hashlib.sha256(f"profile:{owner_user_id}".encode()).digest()[:8])
    return Profile(
        id=uuid.UUID(int=(0x7 << 76) | (0b10 << 62) | (chance >> 2)),
        owner_user_id=owner_user_id,
        slug=Profile.DEFAULT_SLUG,
        name="Default",
        created_at=BEFORE_ALL,
        updated_at=BEFORE_ALL,
    )


def ensure_default_profile(owner_user_id: str) -> Profile:
    """Return the owner's profile ``default``, stored when that is asked for the first time."""
    made = default_profile(owner_user_id)
    profile, _ = Profile.objects.get_or_create(
        owner_user_id=owner_user_id,
        slug=Profile.DEFAULT_SLUG,
        defaults={"id": made.pk, "name": made.name},
    )
    return profile


def get_profile(profile_id: uuid.UUID, *, owner_user_id: str | None) -> Profile:
    """Return a profile; a foreign one is as absent as an unknown one (``NotFound``)."""
    profile = Profile.objects.owned_by(owner_user_id).filter(pk=profile_id).first()
    if profile is None and owner_user_id is not None:
        profile = unstored_default(profile_id, owner_user_id)
    if profile is None:
        raise _profile_not_found()
    return profile


def unstored_default(profile_id: uuid.UUID, owner_user_id: str) -> Profile | None:
    """Return the owner's profile ``default`` when ``profile_id`` means it and it is not stored."""
    _, default = list_profiles(owner_user_id=owner_user_id)
    return default if default is not None and default.pk == profile_id else None


def bindings_of(profile: Profile) -> Sequence[CredentialBinding]:
    """Return what a profile gives, in the order of providers; accounts of every status."""
    rows = CredentialBinding.objects.filter(profile=profile).select_related("account")
    return list(rows.order_by("provider", "account__name", "id"))


def replace_bindings(
    profile_id: uuid.UUID, bindings: Sequence[Binding], *, owner_user_id: str
) -> Sequence[CredentialBinding]:
    """Give a profile these accounts and no others, all at once or not at all; return them.

    Raises ``NotFound`` (``profile-not-found``, ``connected-account-not-found``), ``Conflict``
    (``profile-archived``, ``connected-account-not-active``) and ``ValidationFailed``; each names
    the members that are wrong.
    """
    with transaction.atomic():
        profile = _locked_profile(profile_id, owner_user_id)
        _refuse_wrong(bindings, _locked_accounts(bindings, owner_user_id), "/bindings/{}")
        CredentialBinding.objects.filter(profile=profile).delete()
        _bind(profile, bindings)
    log.info("bindings_replaced", profile=str(profile.pk), accounts=len(bindings))
    return bindings_of(profile)


def replace_binding(
    profile_id: uuid.UUID, provider: Provider, binding: Binding | None, *, owner_user_id: str
) -> Sequence[CredentialBinding]:
    """Give a profile this account of ``provider``, or none; return all that it gives.

    A ``generic`` account is added to the others. Raises as :func:`replace_bindings` does.
    """
    wanted = [] if binding is None else [binding]
    with transaction.atomic():
        profile = _locked_profile(profile_id, owner_user_id)
        _refuse_wrong(wanted, _locked_accounts(wanted, owner_user_id), "")
        replaced = CredentialBinding.objects.filter(profile=profile, provider=provider)
        if binding is not None and provider == Provider.GENERIC:
            replaced = replaced.filter(account_id=binding.account_id)
        replaced.delete()
        _bind(profile, wanted)
    log.info("binding_replaced", profile=str(profile.pk), provider=provider, accounts=len(wanted))
    return bindings_of(profile)


def _locked_profile(profile_id: uuid.UUID, owner_user_id: str) -> Profile:
    """Return a profile that is in use, locked; raise ``NotFound`` or ``Conflict``."""
    if unstored_default(profile_id, owner_user_id) is not None:
        ensure_default_profile(owner_user_id)
    rows = Profile.objects.owned_by(owner_user_id).select_for_update()
    profile = rows.filter(pk=profile_id).first()
    if profile is None:
        raise _profile_not_found()
    if profile.status == Profile.Status.ARCHIVED:
        raise Conflict("The profile is archived.", code="profile-archived")
    return profile


def _locked_accounts(
    bindings: Sequence[Binding], owner_user_id: str
) -> dict[uuid.UUID, ConnectedAccount]:
    """Return the accounts by their ids, locked, so that none of them is deleted before it is bound.

    Unknown and foreign ones are not among them.
    """
    wanted = sorted({binding.account_id for binding in bindings})
    rows = ConnectedAccount.objects.owned_by(owner_user_id).select_for_update()
    return {row.pk: row for row in rows.filter(pk__in=wanted).order_by("id")}


def _bind(profile: Profile, bindings: Sequence[Binding]) -> None:
    CredentialBinding.objects.bulk_create(
        CredentialBinding(profile=profile, account_id=b.account_id, provider=b.provider)
        for b in bindings
    )
    Profile.objects.filter(pk=profile.pk).update(updated_at=Now())


def _refuse_wrong(
    bindings: Sequence[Binding], accounts: dict[uuid.UUID, ConnectedAccount], pointer: str
) -> None:
    """Raise for what cannot be bound: what is unknown first, then what is wrong, then its state.

    ``pointer`` leads to a binding in the body, with its index put in.
    """
    unknown, wrong, unfit = [], [], []
    providers: set[str] = set()
    bound: set[uuid.UUID] = set()
    for index, binding in enumerate(bindings):
        place = pointer.format(index)
        account = accounts.get(binding.account_id)
        if account is None:
            where = f"{place}/connectedAccountId"
            unknown.append(Fault("not-found", "There is no such account.", pointer=where))
            continue
        if account.provider != binding.provider:
            detail = f"The account's provider is {account.provider}."
            wrong.append(Fault("provider-mismatch", detail, pointer=f"{place}/provider"))
        if account.pk in bound:
            where = f"{place}/connectedAccountId"
            wrong.append(Fault("repeated", "The account is bound twice.", pointer=where))
        elif binding.provider in providers and binding.provider != Provider.GENERIC:
            detail = f"A profile can have at most one {binding.provider} account."
            wrong.append(Fault("repeated", detail, pointer=f"{place}/provider"))
        if account.status != ConnectedAccount.Status.ACTIVE:
            detail = f"The account is {account.status}: connect it again."
            where = f"{place}/connectedAccountId"
            unfit.append(Fault("not-active", detail, pointer=where))
        bound.add(account.pk)
        providers.add(binding.provider)
    if unknown:
        error = account_not_found()
        error.errors = tuple(unknown)
        raise error
    if wrong:
        raise ValidationFailed(wrong)
    if unfit:
        raise Conflict(
            "An account that is not active cannot be bound.",
            code="connected-account-not-active",
            errors=unfit,
        )


def _profile_not_found() -> NotFound:
    return NotFound("There is no such profile.", code="profile-not-found")
