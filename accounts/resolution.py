"""Which accounts a new workspace is given: what the request names, and what a profile gives.

Nothing is opened here; a resolution has ids only. What a request names has to be usable, and every
fault is told at once. What a profile gives steps back behind what is named, and is left out when it
cannot be used: the owner has not asked for it just now.

=====================  =================================  ==========================================
fault                  when                               the answer as a whole
=====================  =================================  ==========================================
``not-found``          unknown, or another owner's        404 ``credentials-not-found``
``provider-mismatch``  an account of another provider     400 ``validation-failed``
``repeated``           two accounts set one variable      400 ``validation-failed``
``archived``           the profile is archived            409 ``profile-archived``
``not-active``         the account is invalid or deleted  409 ``connected-account-not-active``
=====================  =================================  ==========================================

The first of them that there is decides on the answer as a whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from accounts.models import ConnectedAccount, Profile
from accounts.profiles import bindings_of, unstored_default
from accounts.providers import Provider, variables_of
from controlplane.errors import Conflict, ControlPlaneError, Fault, NotFound, ValidationFailed
from controlplane.spelling import camel_case

NOT_FOUND = "not-found"
NOT_ACTIVE = "not-active"
ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Reference:
    """An account that a workspace is given. Its secret is opened when the workspace starts."""

    account_id: uuid.UUID
    provider: Provider


@dataclass(frozen=True, slots=True)
class Resolution:
    """The accounts that a workspace is given, and those of its profile that it is not."""

    references: Sequence[Reference] = ()
    left_out: Sequence[uuid.UUID] = ()


def resolve_credentials(
    given: Mapping[str, Any] | None, *, owner_user_id: str, pointer: str = "/credentials"
) -> Resolution:
    """Return the accounts that a request's ``credentials`` come to.

    ``given`` has ``profile_id``, ``claude``, ``codex``, ``github`` and ``generic`` (a list), each
    optional, in either spelling; accounts are named by id or by name. Without ``given`` the owner's
    profile ``default`` is asked, and an empty one means none. ``pointer`` is where it stands.

    Raises ``NotFound``, ``ValidationFailed`` or ``Conflict`` as the module's docstring tells.
    """
    if given is None:
        owned = Profile.objects.owned_by(owner_user_id)
        default = owned.filter(slug=Profile.DEFAULT_SLUG, status=Profile.Status.ACTIVE).first()
        return _Choice(owner_user_id).with_profile(default)
    members = {camel_case(name): value for name, value in given.items() if value is not None}
    choice = _Choice(owner_user_id)
    profile = choice.find_profile(members.pop("profileId", None), f"{pointer}/profileId")
    named = list(_named(members, pointer))
    accounts = _Accounts.of(owner_user_id, [text for _, text, _ in named])
    for provider, text, place in named:
        choice.take(provider, accounts.find(provider, text), place)
    choice.refuse()
    return choice.with_profile(profile)


def reuse_references(
    references: Sequence[Reference], *, owner_user_id: str, pointer: str = "/credentials"
) -> Resolution:
    """Return the accounts of an earlier attempt again, for another one of the same workspace.

    Raises ``Conflict`` (``connected-account-not-active``) when one of them cannot be used any more:
    the request has to say what it wants instead.
    """
    choice = _Choice(owner_user_id)
    mine = ConnectedAccount.objects.owned_by(owner_user_id)
    accounts = mine.in_bulk([reference.account_id for reference in references])
    for reference in references:
        account = accounts.get(reference.account_id)
        choice.take(reference.provider, account, pointer)
    choice.refuse()
    return choice.with_profile(None)


def _named(members: Mapping[str, Any], pointer: str) -> Iterator[tuple[Provider, str, str]]:
    """Yield provider, id or name, and place of each account that a request names."""
    for provider in Provider:
        given = members.get(provider.value)
        if given is None:
            continue
        if provider == Provider.GENERIC:
            for index, text in enumerate(given):
                yield provider, text, f"{pointer}/{provider.value}/{index}"
        else:
            yield provider, given, f"{pointer}/{provider.value}"


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The accounts of one owner that may be meant by some texts, read at once."""

    by_id: Mapping[uuid.UUID, ConnectedAccount]
    by_name: Mapping[tuple[str, str], ConnectedAccount]

    @classmethod
    def of(cls, owner_user_id: str, texts: Sequence[str]) -> _Accounts:
        if not texts:
            return cls({}, {})
        ids = [wanted for text in texts if (wanted := _as_uuid(text))]
        archived = ConnectedAccount.Status.ARCHIVED
        meant = Q(pk__in=ids) | Q(~Q(status=archived), name__in=texts)
        rows = list(ConnectedAccount.objects.owned_by(owner_user_id).filter(meant).defer("sealed"))
        kept = {(row.provider, row.name): row for row in rows if row.status != archived}
        return cls({row.pk: row for row in rows}, kept)

    def find(self, provider: Provider, text: str) -> ConnectedAccount | None:
        """Return the account of this id, else the one that is called so."""
        wanted = _as_uuid(text)
        return (self.by_id.get(wanted) if wanted else None) or self.by_name.get((provider, text))


@dataclass(slots=True)
class _Choice:
    """The accounts of one owner that were chosen so far, and everything that is wrong."""

    owner_user_id: str
    _references: list[Reference] = field(default_factory=list)
    _variables: set[str] = field(default_factory=set)
    _faults: list[Fault] = field(default_factory=list)

    def find_profile(self, profile_id: str | None, pointer: str) -> Profile | None:
        if profile_id is None:
            return None
        wanted = _as_uuid(str(profile_id))
        mine = Profile.objects.owned_by(self.owner_user_id)
        profile = mine.filter(pk=wanted).first() if wanted else None
        if wanted and profile is None:
            profile = unstored_default(wanted, self.owner_user_id)
        if profile is None:
            self._fault(NOT_FOUND, "There is no such profile.", pointer)
        elif profile.status == Profile.Status.ARCHIVED:
            self._fault(ARCHIVED, "The profile is archived.", pointer)
        return profile

    def take(self, provider: Provider, account: ConnectedAccount | None, pointer: str) -> None:
        """Take an account that has to be usable."""
        if account is None:
            self._fault(NOT_FOUND, "There is no such account.", pointer)
        elif account.provider != provider:
            detail = f"The account's provider is {account.provider}."
            self._fault("provider-mismatch", detail, pointer)
        elif account.status != ConnectedAccount.Status.ACTIVE:
            detail = f"The account is {account.status}: connect it again, or name another one."
            self._fault(NOT_ACTIVE, detail, pointer)
        elif not self._fits(account):
            detail = "Another account named here already sets this variable."
            self._fault("repeated", detail, pointer)
        else:
            self._add(account)

    def with_profile(self, profile: Profile | None) -> Resolution:
        """Return what was chosen, with what the profile gives besides."""
        left_out = []
        for account in _given_by(profile):
            if account.owner_user_id != self.owner_user_id:
                continue  # a row that nothing of ours wrote
            if account.status == ConnectedAccount.Status.ACTIVE and self._fits(account):
                self._add(account)
            else:
                left_out.append(account.pk)
        order = list(Provider)
        return Resolution(
            tuple(sorted(self._references, key=lambda reference: order.index(reference.provider))),
            tuple(left_out),
        )

    def refuse(self) -> None:
        """Raise for every fault there is."""
        codes = {fault.code for fault in self._faults}
        if codes:
            raise _refusal(codes, self._faults)

    def _fits(self, account: ConnectedAccount) -> bool:
        provider = Provider(account.provider)
        alone = provider != Provider.GENERIC
        taken = alone and any(reference.provider == provider for reference in self._references)
        return not taken and self._variables.isdisjoint(variables_of(provider, account.name))

    def _add(self, account: ConnectedAccount) -> None:
        provider = Provider(account.provider)
        self._variables.update(variables_of(provider, account.name))
        self._references.append(Reference(account.pk, provider))

    def _fault(self, code: str, detail: str, pointer: str) -> None:
        self._faults.append(Fault(code, detail, pointer=pointer))


def _given_by(profile: Profile | None) -> Iterator[ConnectedAccount]:
    if profile is None:
        return
    order = list(Provider)
    bindings = bindings_of(profile)
    for binding in sorted(bindings, key=lambda binding: order.index(Provider(binding.provider))):
        yield binding.account


def _refusal(codes: set[str], faults: Sequence[Fault]) -> ControlPlaneError:
    if NOT_FOUND in codes:
        return NotFound(
            "The credentials name profiles or accounts that do not exist.",
            code="credentials-not-found",
            errors=faults,
        )
    if codes - {ARCHIVED, NOT_ACTIVE}:
        return ValidationFailed(faults)
    if ARCHIVED in codes:
        return Conflict("The profile is archived.", code="profile-archived", errors=faults)
    return Conflict(
        "A workspace cannot be given an account that is not active.",
        code="connected-account-not-active",
        errors=faults,
    )


def _as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
