"""Profiles and the accounts they give."""

from __future__ import annotations

import base64
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.connected import connect_account, delete_account, mark_account_invalid
from accounts.models import ConnectedAccount, CredentialBinding, Profile
from accounts.profiles import ensure_default_profile
from accounts.providers import Provider
from accounts.resolution import resolve_credentials
from tests.conftest import OWNER, Answer, Api

pytestmark = pytest.mark.django_db
CLAUDE = "sk-ant-oat01-" + "c" * 40
GITHUB = "ghp_" + "g" * 36


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = base64.b64encode(bytes(32)).decode()


def account(provider: str = "claude", name: str = "default", owner: str = OWNER) -> str:
    made = connect_account(
        owner_user_id=owner,
        provider=Provider(provider),
        name=name,
        secret={"claude": CLAUDE, "github": GITHUB}.get(provider, "anything"),
    )
    return str(made.pk)


def default_profile(api: Api, owner: str = OWNER) -> str:
    (profile,) = api.get(f"/v1/profiles?ownerUserId={owner}").body["items"]
    return str(profile["profileId"])


def bind(
    api: Api, profile: str, *bindings: tuple[str, str], owner: str = OWNER, expect: int = 200
) -> Answer:
    body = {
        "ownerUserId": owner,
        "bindings": [
            {"provider": provider, "connectedAccountId": account_id}
            for provider, account_id in bindings
        ],
    }
    path = f"/v1/profiles/{profile}/credential-bindings"
    return api.request("PUT", path, body, expect=expect)


def bound(api: Api, profile: str) -> list[tuple[str, str]]:
    items = api.get(f"/v1/profiles/{profile}/credential-bindings?ownerUserId={OWNER}").body["items"]
    return [(item["provider"], item["account"]["status"]) for item in items]


def test_every_owner_has_a_default_profile_from_the_first_moment(api: Api) -> None:
    first = api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"]
    assert [(profile["slug"], profile["status"]) for profile in first] == [("default", "active")]
    assert api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"] == first
    assert default_profile(api, "usr_b") != first[0]["profileId"]


def test_reading_profiles_stores_nothing(api: Api) -> None:
    profile = default_profile(api)
    assert bound(api, profile) == []
    path = f"/v1/profiles/{profile}/credential-bindings"
    api.get(f"{path}?ownerUserId=usr_b", expect=404)
    api.get(path, expect=404)
    assert resolve_credentials({"profile_id": profile}, owner_user_id=OWNER).references == ()
    assert not Profile.objects.exists()
    bind(api, profile, ("claude", account("claude")))
    assert default_profile(api) == profile
    assert str(Profile.objects.get().pk) == profile


def test_a_default_profile_that_is_not_stored_is_the_last_of_the_list(api: Api) -> None:
    made = [Profile.objects.create(owner_user_id=OWNER, slug=f"p{n}", name="P") for n in range(2)]
    for limit in (1, 2, 3):
        slugs, cursor = [], ""
        while True:
            path = f"/v1/profiles?ownerUserId={OWNER}&limit={limit}{cursor}"
            answer = api.get(path).body
            slugs += [item["slug"] for item in answer["items"]]
            if "nextCursor" not in answer:
                break
            cursor = f"&cursor={answer['nextCursor']}"
        assert slugs == ["p1", "p0", "default"]
    assert Profile.objects.count() == len(made)


def test_many_first_bindings_at_once_make_one_default_profile(
    transactional_db: None, api: Api
) -> None:
    profile, claude = default_profile(api), account("claude")

    def first(_: int) -> int:
        try:
            return bind(Api(), profile, ("claude", claude)).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(first, range(12))) == {200}
    assert Profile.objects.count() == 1


def test_the_whole_set_is_replaced(api: Api) -> None:
    profile = default_profile(api)
    claude, github = account("claude"), account("github")
    assert len(bind(api, profile, ("claude", claude), ("github", github)).body["items"]) == 2
    (item,) = bind(api, profile, ("github", github)).body["items"]
    assert (item["profileId"], item["connectedAccountId"]) == (profile, github)
    assert item["account"]["provider"] == "github"
    assert bind(api, profile).body == {"items": []}


def test_a_profile_shows_null_for_what_it_lacks(api: Api) -> None:
    (default,) = api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"]
    assert (default["description"], default["activeRevisionId"]) == (None, None)
    Profile.objects.create(owner_user_id=OWNER, slug="ci", name="CI", description="For builds")
    shown = api.get(f"/v1/profiles?ownerUserId={OWNER}").body["items"][0]
    assert (shown["description"], shown["activeRevisionId"]) == ("For builds", None)


def bind_one(api: Api, profile: str, *, expect: int = 200, **members: Any) -> Answer:
    path = f"/v1/profiles/{profile}/credential-bindings"
    return api.request("PUT", path, {"ownerUserId": OWNER, **members}, expect=expect)


def test_the_account_of_one_provider_is_replaced_alone(api: Api) -> None:
    profile = default_profile(api)
    first, second = account("claude", "one"), account("claude", "two")
    github = account("github")
    bind(api, profile, ("claude", first), ("github", github))
    items = bind_one(api, profile, provider="claude", connectedAccountId=second).body["items"]
    assert [item["connectedAccountId"] for item in items] == [second, github]
    for _ in range(2):
        items = bind_one(api, profile, provider="claude", connectedAccountId=None).body["items"]
        assert [item["connectedAccountId"] for item in items] == [github]


def test_one_variable_is_added_and_null_takes_all_of_them_away(api: Api) -> None:
    profile, variables = default_profile(api), [account("generic", name) for name in ("A", "B")]
    for variable in [*variables, variables[0]]:
        shown = bind_one(api, profile, provider="generic", connectedAccountId=variable)
    assert [item["connectedAccountId"] for item in shown.body["items"]] == variables
    emptied = bind_one(api, profile, provider="generic", connectedAccountId=None)
    assert emptied.body == {"items": []}


def test_one_binding_is_refused_as_a_whole_set_is(api: Api) -> None:
    profile, claude = default_profile(api), account("claude")
    wrong = bind_one(api, profile, provider="github", connectedAccountId=claude, expect=400)
    assert wrong.codes == {"/provider": "provider-mismatch"}
    foreign = account("claude", owner="usr_b")
    absent = bind_one(api, profile, provider="claude", connectedAccountId=foreign, expect=404)
    assert absent.codes == {"/connectedAccountId": "not-found"}
    mark_account_invalid(uuid.UUID(claude), owner_user_id=OWNER)
    unfit = bind_one(api, profile, provider="claude", connectedAccountId=claude, expect=409)
    assert unfit.codes == {"/connectedAccountId": "not-active"}
    assert bound(api, profile) == []


@pytest.mark.parametrize(
    ("members", "codes"),
    [
        ({}, {"/bindings": "required"}),
        ({"provider": "claude"}, {"/connectedAccountId": "required"}),
        ({"connectedAccountId": None}, {"/provider": "required"}),
        ({"bindings": [], "provider": "claude"}, {"/provider": "not-allowed"}),
    ],
)
def test_bindings_are_either_all_or_one(
    api: Api, members: dict[str, Any], codes: dict[str, str]
) -> None:
    assert bind_one(api, default_profile(api), expect=400, **members).codes == codes


def test_many_variables_are_given_but_one_account_of_each_provider(api: Api) -> None:
    profile = default_profile(api)
    first, second = account("generic", "A"), account("generic", "B")
    bind(api, profile, ("generic", first), ("generic", second))
    one, other = account("github", "one"), account("github", "other")
    refused = bind(api, profile, ("github", one), ("github", other), expect=400)
    assert refused.codes == {"/bindings/1/provider": "repeated"}
    refused = bind(api, profile, ("generic", first), ("generic", first), expect=400)
    assert refused.codes == {"/bindings/1/connectedAccountId": "repeated"}
    assert len(bound(api, profile)) == 2


def test_what_cannot_be_bound_is_named_and_nothing_changes(api: Api) -> None:
    profile, good = default_profile(api), account("claude")
    bind(api, profile, ("claude", good))
    invalid, deleted = account("github", "invalid"), account("github", "deleted")
    mark_account_invalid(uuid.UUID(invalid), owner_user_id=OWNER)
    delete_account(uuid.UUID(deleted), owner_user_id=OWNER)
    cases: list[tuple[str, str, int, str, dict[str, str]]] = [
        ("github", account("github", owner="usr_b"), 404, "connected-account-not-found",
         {"/bindings/1/connectedAccountId": "not-found"}),
        ("github", str(uuid.uuid4()), 404, "connected-account-not-found",
         {"/bindings/1/connectedAccountId": "not-found"}),
        ("codex", account("github"), 400, "validation-failed",
         {"/bindings/1/provider": "provider-mismatch"}),
        ("github", invalid, 409, "connected-account-not-active",
         {"/bindings/1/connectedAccountId": "not-active"}),
        ("github", deleted, 409, "connected-account-not-active",
         {"/bindings/1/connectedAccountId": "not-active"}),
    ]  # fmt: skip
    for provider, target, status, code, faults in cases:
        refused = bind(api, profile, ("claude", good), (provider, target), expect=status)
        assert (refused.body["code"], refused.codes) == (code, faults)
    assert bound(api, profile) == [("claude", "active")]


@pytest.mark.parametrize(
    "bindings",
    [None, {}, "x", [5], [{}], [{"provider": "claude"}], [{"provider": "x"}], [{}] * 101,
     [{"provider": "claude", "connectedAccountId": "1"}]],
)  # fmt: skip
def test_bindings_of_another_shape_are_refused(api: Api, bindings: Any) -> None:
    path = f"/v1/profiles/{default_profile(api)}/credential-bindings"
    refused = api.request("PUT", path, {"ownerUserId": OWNER, "bindings": bindings}, expect=400)
    assert {place.split("/")[1] for place in refused.codes} == {"bindings"}


def test_a_foreign_and_an_unknown_profile_are_absent_alike(api: Api) -> None:
    profile = default_profile(api)
    for target, owner in ((profile, "usr_b"), (str(uuid.uuid4()), OWNER)):
        path = f"/v1/profiles/{target}/credential-bindings?ownerUserId={owner}"
        assert api.get(path, expect=404).body["code"] == "profile-not-found"
        assert bind(api, target, owner=owner, expect=404).body["code"] == "profile-not-found"


def test_an_archived_profile_is_listed_and_takes_nothing(api: Api) -> None:
    profile = str(ensure_default_profile(OWNER).pk)
    Profile.objects.update(status="archived")
    assert bind(api, profile, expect=409).body["code"] == "profile-archived"
    assert default_profile(api) == profile


def test_an_account_that_ends_stays_listed_with_its_status(api: Api) -> None:
    profile, claude, github = default_profile(api), account("claude"), account("github")
    bind(api, profile, ("claude", claude), ("github", github))
    mark_account_invalid(uuid.UUID(claude), owner_user_id=OWNER)
    delete_account(uuid.UUID(github), owner_user_id=OWNER)
    assert bound(api, profile) == [("claude", "invalid"), ("github", "archived")]


@pytest.fixture
def operator() -> Client:
    """Somebody who may do everything in the admin."""
    get_user_model().objects.create_superuser("op", "op@example.org", "password")
    client = Client()
    client.login(username="op", password="password")
    return client


def form(*accounts: str, bindings: list[CredentialBinding] | None = None) -> dict[str, str]:
    """The admin's form of a profile, with these accounts bound beside what is bound already."""
    there = bindings or []
    values = {
        "owner_user_id": OWNER, "slug": "work", "name": "Work", "description": "",
        "status": "active", "bindings-INITIAL_FORMS": str(len(there)),
        "bindings-TOTAL_FORMS": str(len(there) + len(accounts)),
    }  # fmt: skip
    for index, binding in enumerate(there):
        values[f"bindings-{index}-id"] = str(binding.pk)
        values[f"bindings-{index}-profile"] = str(binding.profile_id)
        values[f"bindings-{index}-account"] = str(binding.account_id)
    for index, account_id in enumerate(accounts, start=len(there)):
        values[f"bindings-{index}-account"] = account_id
    return values


def test_operators_add_profiles_and_bind_accounts_of_their_owner_only(operator: Client) -> None:
    mine, foreign = account("claude"), account("claude", owner="usr_b")
    add = reverse("admin:accounts_profile_add")
    assert b"another owner" in operator.post(add, form(foreign)).content
    assert not CredentialBinding.objects.exists()
    assert operator.post(add, form(mine)).status_code == 302
    binding = CredentialBinding.objects.get()
    assert (binding.provider, binding.profile.slug) == ("claude", "work")
    assert binding.account == ConnectedAccount.objects.get(pk=mine)


def test_operators_are_told_of_accounts_that_a_profile_cannot_give_together(
    operator: Client,
) -> None:
    one, other = account("claude", "one"), account("claude", "other")
    add = reverse("admin:accounts_profile_add")
    for pair in ((one, other), (one, one)):
        answer = operator.post(add, form(*pair))
        assert answer.status_code == 200
        assert b"at most one" in answer.content or b"duplicate" in answer.content
    assert not CredentialBinding.objects.exists()
    variables = account("generic", "A"), account("generic", "B")
    assert operator.post(add, form(*variables)).status_code == 302


def test_operators_may_archive_a_profile_whose_account_became_invalid(operator: Client) -> None:
    mine = account("claude")
    operator.post(reverse("admin:accounts_profile_add"), form(mine))
    mark_account_invalid(uuid.UUID(mine), owner_user_id=OWNER)
    binding = CredentialBinding.objects.get()
    change = reverse("admin:accounts_profile_change", args=[binding.profile_id])
    answer = operator.post(change, {**form(bindings=[binding]), "status": "archived"})
    assert answer.status_code == 302
    assert Profile.objects.get().status == "archived"
