"""Which accounts are chosen, asked directly, one guard at a time."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.models import ConnectedAccount, CredentialBinding, Profile
from accounts.providers import Provider
from accounts.resolution import (
    Reference,
    Resolution,
    resolve_credentials,
    reuse_references,
)
from controlplane.errors import Conflict, NotFound, ValidationFailed
from tests.accounts.connected import KEY, bind, connect, delete, mark_invalid
from tests.conftest import OWNER

pytestmark = pytest.mark.django_db
OTHER = "usr_other"


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


def resolved(given: dict[str, Any] | None, **values: Any) -> list[tuple[str, str]]:
    """Return provider and id of what a request's credentials come to."""
    resolution = resolve_credentials(given, owner_user_id=OWNER, **values)
    return [(each.provider.value, str(each.account_id)) for each in resolution.references]


def faults(error: NotFound | ValidationFailed | Conflict) -> list[tuple[str, str, str]]:
    """Return code, pointer and sentence of each fault."""
    return [(fault.code, fault.pointer or "", fault.detail) for fault in error.errors]


def reference(account: str, provider: Provider = Provider.CLAUDE) -> Reference:
    return Reference(uuid.UUID(account), provider)


def default_profile() -> Profile:
    return Profile.objects.get(owner_user_id=OWNER, slug=Profile.DEFAULT_SLUG)


# ---------------------------------------------------------------- again


def test_what_an_earlier_attempt_had_is_given_again_in_the_order_of_providers() -> None:
    github, claude = connect("github"), connect("claude")
    references = (reference(github, Provider.GITHUB), reference(claude))
    assert reuse_references(references, owner_user_id=OWNER) == Resolution(
        (reference(claude), reference(github, Provider.GITHUB)), ()
    )


def test_a_foreign_account_is_not_reused() -> None:
    foreign = connect("claude", owner=OTHER)
    with pytest.raises(NotFound) as caught:
        reuse_references([reference(foreign)], owner_user_id=OWNER)
    assert faults(caught.value) == [("not-found", "/credentials", "There is no such account.")]
    assert caught.value.code == "credentials-not-found"


def test_an_account_that_cannot_be_used_is_not_reused() -> None:
    account = connect("claude")
    mark_invalid(account)
    with pytest.raises(Conflict) as caught:
        reuse_references([reference(account)], owner_user_id=OWNER, pointer="/x")
    assert caught.value.code == "connected-account-not-active"
    detail = "The account is invalid: connect it again, or name another one."
    assert faults(caught.value) == [("not-active", "/x", detail)]


def test_an_account_of_another_provider_is_not_reused() -> None:
    account = connect("github")
    with pytest.raises(ValidationFailed) as caught:
        reuse_references([reference(account)], owner_user_id=OWNER)
    detail = "The account's provider is github."
    assert faults(caught.value) == [("provider-mismatch", "/credentials", detail)]


def test_what_a_profile_gives_by_now_is_not_added_to_what_is_reused() -> None:
    claude, github = connect("claude"), connect("github")
    bind(("github", github))
    found = reuse_references([reference(claude)], owner_user_id=OWNER)
    assert found == Resolution((reference(claude),), ())


# ---------------------------------------------------------------- named


def test_each_provider_is_named_by_its_member_in_either_spelling_and_null_names_none() -> None:
    claude = connect("claude")
    bind(("claude", claude))
    profile = str(default_profile().pk)
    for name in ("profileId", "profile_id"):
        assert resolved({name: profile, "github": None}) == [("claude", claude)]
    assert resolved({}) == resolved({"claude": None, "profileId": None}) == []
    assert resolved(None) == [("claude", claude)]


def test_another_owners_account_is_named_by_nobody_else() -> None:
    foreign = connect("claude", "work", owner=OTHER)
    for text in (foreign, "work"):
        with pytest.raises(NotFound) as caught:
            resolved({"claude": text}, pointer="/spec/credentials")
        assert [fault[:2] for fault in faults(caught.value)] == [
            ("not-found", "/spec/credentials/claude")
        ]


def test_a_deleted_account_is_found_by_its_id_alone() -> None:
    account = connect("claude", "work")
    delete(account)
    with pytest.raises(Conflict) as caught:
        resolved({"claude": account})
    assert caught.value.code == "connected-account-not-active"
    with pytest.raises(NotFound):
        resolved({"claude": "work"})


def test_a_name_means_the_account_of_the_asked_provider() -> None:
    claude, github = connect("claude", "work"), connect("github", "work")
    assert resolved({"claude": "work"}) == [("claude", claude)]
    assert resolved({"github": "work"}) == [("github", github)]
    with pytest.raises(NotFound):
        resolved({"codex": "work"})


def test_every_place_of_a_list_is_told_apart() -> None:
    first = connect("generic", "FIRST")
    with pytest.raises(NotFound) as caught:
        resolved({"generic": [first, "NONE", first]})
    assert faults(caught.value) == [
        ("not-found", "/credentials/generic/1", "There is no such account."),
        (
            "repeated",
            "/credentials/generic/2",
            "Another account named here already sets this variable.",
        ),
    ]


@pytest.mark.parametrize("wanted", ["no-id", "0193a5e0-0000-7000-8000-000000000000"])
def test_a_profile_that_is_none_is_told(wanted: str) -> None:
    with pytest.raises(NotFound) as caught:
        resolved({"profileId": wanted})
    assert faults(caught.value) == [
        ("not-found", "/credentials/profileId", "There is no such profile.")
    ]
    expected = "The credentials name profiles or accounts that do not exist."
    assert caught.value.detail == expected


def test_an_archived_profile_is_told() -> None:
    bind(("claude", connect("claude")))
    profile = default_profile()
    Profile.objects.filter(pk=profile.pk).update(status=Profile.Status.ARCHIVED)
    with pytest.raises(Conflict) as caught:
        resolved({"profileId": str(profile.pk)})
    assert caught.value.code == "profile-archived"
    assert faults(caught.value) == [
        ("archived", "/credentials/profileId", "The profile is archived.")
    ]
    assert resolved(None) == []


# ---------------------------------------------------------------- what a profile gives


def test_a_profile_gives_what_is_not_named_and_tells_what_it_cannot_give() -> None:
    named, other, github = connect("claude", "a"), connect("claude", "b"), connect("github")
    codex = connect("codex")
    bind(("github", github), ("codex", codex), ("claude", other))
    mark_invalid(github)
    profile = str(default_profile().pk)
    found = resolve_credentials({"profileId": profile, "claude": named}, owner_user_id=OWNER)
    assert found.references == (reference(named), reference(codex, Provider.CODEX))
    assert [str(account) for account in found.left_out] == [other, github]


def test_of_one_provider_a_workspace_has_one_account() -> None:
    named, other = connect("codex", "a"), connect("codex", "b")
    bind(("codex", other))
    given = {"profileId": str(default_profile().pk), "codex": named}
    found = resolve_credentials(given, owner_user_id=OWNER)
    assert found == Resolution((reference(named, Provider.CODEX),), (uuid.UUID(other),))


def test_a_foreign_account_that_a_profile_is_bound_to_is_neither_given_nor_told() -> None:
    mine, foreign = connect("claude"), connect("claude", owner=OTHER)
    bind(("claude", mine))
    CredentialBinding.objects.update(account=ConnectedAccount.objects.get(pk=foreign))
    assert resolve_credentials(None, owner_user_id=OWNER) == Resolution((), ())
