"""What operators see of accounts and do about them, and how they edit profiles."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.models import ConnectedAccount, CredentialBinding, Profile
from tests.accounts.connected import KEY, SECRETS, bind, codex, connect, delete, mark_invalid
from tests.conftest import OWNER, Api
from workspaces.models import CredentialReference

pytestmark = pytest.mark.django_db
ACCOUNTS = "admin:accounts_connectedaccount"
PROFILES = "admin:accounts_profile"


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


def signed_in(*codenames: str) -> Client:
    """A member of staff who may do this and nothing else; everything when nothing is named."""
    users = get_user_model().objects
    user: Any = users.create_user("staff", password="password", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    user.is_superuser = not codenames
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    """Somebody who may do everything."""
    return signed_in()


def stored(account: str) -> ConnectedAccount:
    return ConnectedAccount.objects.get(pk=account)


def run_action(client: Client, action: str, *accounts: str) -> bytes:
    """Run an action of the list; return the page that follows."""
    path = reverse(f"{ACCOUNTS}_changelist")
    answer = client.post(path, {"action": action, "_selected_action": accounts}, follow=True)
    return answer.content


def profile_form(profile: str, *accounts: str, remove: str | None = None) -> dict[str, str]:
    """The form of a profile as the browser sends it, with these accounts bound besides."""
    bound = list(CredentialBinding.objects.filter(profile_id=profile).order_by("pk"))
    values = {
        "name": "Default", "description": "", "status": "active",
        "bindings-INITIAL_FORMS": str(len(bound)),
        "bindings-TOTAL_FORMS": str(len(bound) + len(accounts)),
    }  # fmt: skip
    for index, binding in enumerate(bound):
        values[f"bindings-{index}-id"] = str(binding.pk)
        values[f"bindings-{index}-account"] = str(binding.account_id)
        if str(binding.account_id) == remove:
            values[f"bindings-{index}-DELETE"] = "on"
    for index, account in enumerate(accounts, start=len(bound)):
        values[f"bindings-{index}-account"] = account
    return values


def save(client: Client, profile: str, *accounts: str, remove: str | None = None) -> Any:
    """Save a profile; return the answer, whose form tells the faults when it was refused."""
    path = reverse(f"{PROFILES}_change", args=[profile])
    return client.post(path, profile_form(profile, *accounts, remove=remove))


def faults(answer: Any) -> list[dict[str, list[str]]]:
    """What each binding of a refused form is told, by its member."""
    assert answer.status_code == 200
    (inline,) = answer.context["inline_admin_formsets"]
    return [dict(errors) for errors in inline.formset.errors]


def bound(profile: str) -> set[tuple[str, str]]:
    rows = CredentialBinding.objects.filter(profile_id=profile)
    return {(row.provider, str(row.account_id)) for row in rows}


# ---------------------------------------------------------------- accounts


def test_no_page_of_an_account_shows_or_asks_for_a_secret(operator: Client) -> None:
    accounts = {provider: connect(provider, "NAME") for provider in SECRETS}
    for provider, account in accounts.items():
        sealed = bytes(stored(account).sealed or b"")
        pages = [
            reverse(f"{ACCOUNTS}_change", args=[account]),
            reverse(f"{ACCOUNTS}_history", args=[account]),
            reverse(f"{ACCOUNTS}_changelist") + f"?q={account}",
            reverse(f"{ACCOUNTS}_changelist") + "?q=NAME",
        ]
        for page in pages:
            content = operator.get(page).content
            assert provider.encode() in content
            for spelling in (
                SECRETS[provider].encode(), b"refresh-0000", sealed.hex().encode(),
                base64.b64encode(sealed), repr(sealed)[2:-1].encode(),
            ):  # fmt: skip
                assert spelling not in content
            assert b'name="secret"' not in content
            assert b'name="sealed"' not in content


def test_accounts_are_neither_added_nor_edited_nor_deleted_as_rows(operator: Client) -> None:
    account = connect("github")
    assert operator.get(reverse(f"{ACCOUNTS}_add")).status_code == 403
    change = reverse(f"{ACCOUNTS}_change", args=[account])
    assert operator.post(change, {"owner_user_id": "usr_b"}).status_code == 403
    assert operator.post(reverse(f"{ACCOUNTS}_delete", args=[account])).status_code == 403
    assert stored(account).owner_user_id == OWNER


def test_accounts_are_found_by_id_name_and_owner(operator: Client) -> None:
    mine, other = connect("github", "mine"), connect("github", "other", owner="usr_b")
    path = reverse(f"{ACCOUNTS}_changelist")
    for asked in (mine, "mine", OWNER):
        content = operator.get(f"{path}?q={asked}").content.decode()
        assert reverse(f"{ACCOUNTS}_change", args=[mine]) in content
        assert reverse(f"{ACCOUNTS}_change", args=[other]) not in content


def test_many_accounts_are_marked_invalid_or_erased_at_once(operator: Client) -> None:
    first, second = connect("generic", "FIRST"), connect("generic", "SECOND")
    assert b"2 marked invalid." in run_action(operator, "mark_invalid", first, second)
    assert {stored(first).status, stored(second).status} == {"invalid"}
    assert b"2 erased." in run_action(operator, "erase", first, second)
    assert stored(first).sealed is None
    assert b"0 erased." in run_action(operator, "erase", first, second)
    assert b"0 marked invalid." in run_action(operator, "mark_invalid", first)


def test_to_look_at_accounts_is_not_to_act_on_them() -> None:
    account = connect("github")
    looking = signed_in("view_connectedaccount")
    assert looking.get(reverse(f"{ACCOUNTS}_changelist")).status_code == 200
    run_action(looking, "erase", account)
    run_action(looking, "mark_invalid", account)
    assert stored(account).status == "active"


# ---------------------------------------------------------------- profiles


def test_bindings_are_added_and_taken_away(operator: Client) -> None:
    claude, variable = connect("claude"), connect("generic", "FIRST")
    profile = bind(("claude", claude))
    assert save(operator, profile, variable).status_code == 302
    assert bound(profile) == {("claude", claude), ("generic", variable)}
    assert save(operator, profile, remove=claude).status_code == 302
    assert bound(profile) == {("generic", variable)}


def test_what_the_api_does_not_bind_the_admin_does_not_and_names_the_member(
    operator: Client,
) -> None:
    kept = connect("claude")
    profile = bind(("claude", kept))
    foreign, invalid = connect("github", owner="usr_b"), connect("github", "invalid")
    archived, again = connect("codex"), connect("claude", "again")
    mark_invalid(invalid)
    delete(archived)
    for account, words in [
        (foreign, "belongs to another owner"),
        (invalid, "is invalid"),
        (archived, "is archived"),
    ]:
        told = faults(save(operator, profile, account))
        assert told[0] == {}
        assert any(words in detail for detail in told[1]["account"]), told
    refused = save(operator, profile, again)
    assert b"A profile can have at most one claude account." in refused.content
    assert bound(profile) == {("claude", kept)}


def test_one_claude_account_takes_the_place_of_another_in_one_go(operator: Client) -> None:
    first, second = connect("claude"), connect("claude", "second")
    profile = bind(("claude", first))
    assert save(operator, profile, second, remove=first).status_code == 302
    assert bound(profile) == {("claude", second)}


def test_an_account_that_ended_stays_bound_until_it_is_taken_away(operator: Client) -> None:
    account, variable = connect("claude"), connect("generic", "FIRST")
    profile = bind(("claude", account))
    delete(account)
    assert save(operator, profile, variable).status_code == 302
    assert bound(profile) == {("claude", account), ("generic", variable)}
    assert save(operator, profile, remove=account).status_code == 302


def test_a_profile_stays_its_owner_s(operator: Client) -> None:
    profile = bind()
    path = reverse(f"{PROFILES}_change", args=[profile])
    operator.post(path, {**profile_form(profile), "owner_user_id": "usr_b", "slug": "other"})
    row = Profile.objects.get(pk=profile)
    assert (row.owner_user_id, row.slug) == (OWNER, "default")


def test_accounts_that_can_be_given_are_offered_with_their_owners(operator: Client) -> None:
    connect("github", "mine")
    connect("github", "theirs", owner="usr_b")
    mark_invalid(connect("github", "invalid"))
    delete(connect("github", "deleted"))
    asked = {"app_label": "accounts", "model_name": "credentialbinding", "field_name": "account"}
    answer = operator.get(reverse("admin:autocomplete"), asked)
    offered = {found["text"] for found in answer.json()["results"]}
    assert offered == {f"github mine of {OWNER}", "github theirs of usr_b"}


def test_to_look_at_profiles_is_not_to_edit_them() -> None:
    profile = bind()
    account = connect("claude")
    looking = signed_in("view_profile", "view_credentialbinding")
    assert save(looking, profile, account).status_code == 403
    assert bound(profile) == set()


# ---------------------------------------------------------------- workspaces


def test_an_attempt_shows_which_accounts_its_workspace_is_given(
    operator: Client, api: Api, request_body: dict[str, Any]
) -> None:
    connect("codex", "work", codex())
    started = api.post("/v1/sandboxes", {**request_body, "credentials": {"codex": "work"}}).body
    path = reverse("admin:workspaces_attempt_change", args=[started["attemptId"]])
    content = operator.get(path).content
    assert f"codex work of {OWNER}".encode() in content
    assert b"refresh-0000" not in content
    assert operator.post(path, {}).status_code == 403
    assert CredentialReference.objects.count() == 1


def test_a_default_profile_that_an_operator_adds_has_the_id_that_its_owner_was_told(
    operator: Client, api: Api
) -> None:
    account = connect("claude")
    (told,) = api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"]
    form = {**profile_form(told["profileId"], account), "owner_user_id": OWNER, "slug": "default"}
    assert operator.post(reverse(f"{PROFILES}_add"), form).status_code == 302
    (stored_now,) = api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"]
    assert stored_now["profileId"] == told["profileId"]
    assert bound(told["profileId"]) == {("claude", account)}
