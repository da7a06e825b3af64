"""Connecting, listing, deleting and invalidating accounts; what is stored of their secrets."""

from __future__ import annotations

import base64
import json
import secrets
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.connected import reveal
from accounts.models import ConnectedAccount
from accounts.sealing import SealError, same_keys
from runs.agent.credentials.document import MAX_SECRET_BYTES
from tests.conftest import OWNER, Answer, Api

pytestmark = pytest.mark.django_db
PATH = "/v1/connected-accounts"
CLAUDE = "sk-ant-oat01-" + "c" * 40
GITHUB = "ghp_" + "g" * 36
SECRET = "canary-of-the-accounts"


def key(byte: int = 1) -> str:
    return base64.b64encode(bytes([byte]) * 32).decode()


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = key()
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


def connect(api: Api, provider: str, secret: str, *, expect: int = 201, **members: Any) -> Answer:
    body = {"ownerUserId": OWNER, "provider": provider, "secret": secret, **members}
    return api.post(PATH, body, expect=expect)


def generic(api: Api, name: str = "API_TOKEN", secret: str = SECRET, **members: Any) -> Any:
    return connect(api, "generic", secret, name=name, **members).body


def delete(api: Api, account_id: str, owner: str = OWNER, *, expect: int = 200) -> Answer:
    return api.request("DELETE", f"{PATH}/{account_id}?ownerUserId={owner}", expect=expect)


def mark_invalid(api: Api, account_id: str, owner: str = OWNER, *, expect: int = 200) -> Answer:
    return api.post(f"{PATH}/{account_id}/mark-invalid", {"ownerUserId": owner}, expect=expect)


def stored(account_id: str) -> ConnectedAccount:
    return ConnectedAccount.objects.get(pk=account_id)


# ---------------------------------------------------------------- connecting


def test_an_account_is_connected_and_shown_without_its_secret(api: Api) -> None:
    answer = connect(api, "claude", f"  {CLAUDE}\n")
    shown = answer.body
    assert answer.headers["location"] == f"{PATH}/{shown['connectedAccountId']}"
    assert (shown["provider"], shown["kind"], shown["status"]) == (
        "claude", "oauth-token", "active",
    )  # fmt: skip
    assert shown["name"] == "default"
    assert shown["metadata"] == {"tokenSuffix": "cccc", "connectedVia": "paste"}
    assert (shown["lastUsedAt"], shown["lastSyncedAt"]) == (None, None)
    assert CLAUDE not in answer.content.decode()
    assert reveal(stored(shown["connectedAccountId"])) == CLAUDE


def test_an_account_tells_when_it_was_last_given_and_renewed(api: Api) -> None:
    account_id = generic(api)["connectedAccountId"]
    used, synced = datetime(2026, 1, 2, 3, tzinfo=UTC), datetime(2026, 1, 2, 4, tzinfo=UTC)
    ConnectedAccount.objects.filter(pk=account_id).update(last_used_at=used, last_synced_at=synced)
    (shown,) = api.get(f"{PATH}?ownerUserId={OWNER}").body["items"]
    assert shown["lastUsedAt"] == "2026-01-02T03:00:00.000Z"
    assert shown["lastSyncedAt"] == "2026-01-02T04:00:00.000Z"


def test_connecting_again_replaces_the_secret_and_wakes_the_account(api: Api) -> None:
    first = generic(api)
    mark_invalid(api, first["connectedAccountId"])
    second = generic(api, secret="another")
    assert second["connectedAccountId"] == first["connectedAccountId"]
    assert (second["status"], second["connectedAt"]) == ("active", first["connectedAt"])
    assert reveal(stored(first["connectedAccountId"])) == "another"


def test_owners_providers_and_names_have_accounts_of_their_own(api: Api) -> None:
    accounts = [
        generic(api),
        generic(api, "OTHER"),
        generic(api, ownerUserId="usr_b"),
        connect(api, "github", GITHUB, name="API_TOKEN").body,
    ]
    assert len({account["connectedAccountId"] for account in accounts}) == 4


def test_the_content_of_codex_is_kept_as_it_is_and_its_claims_are_shown(api: Api) -> None:
    claims = {
        "email": "ada@example.org",
        "https://api.openai.com/auth": {"chatgpt_account_id": "a1"},
    }
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    tokens = {"refresh_token": "r", "id_token": f"h.{body}.s"}
    text = json.dumps({"tokens": tokens, "last_refresh": "2026-01-02", "more": 1}, indent=2) + "\n"
    shown = connect(api, "codex", text).body
    assert shown["kind"] == "auth-json"
    assert shown["metadata"] == {
        "accountId": "a1", "lastRefresh": "2026-01-02", "email": "ada@example.org",
    }  # fmt: skip
    assert reveal(stored(shown["connectedAccountId"])) == text


@pytest.mark.parametrize(
    "token", ["h.!!!.s", "h.W10.s", "h.e30.s", "..", "no token", 5, {"a": 1}, None]
)
def test_a_codex_token_that_says_nothing_is_no_obstacle(api: Api, token: Any) -> None:
    text = json.dumps({"tokens": {"refresh_token": "r", "id_token": token}})
    assert connect(api, "codex", text).body["metadata"] == {}


@pytest.mark.parametrize(
    ("provider", "secret", "expected"),
    [
        ("claude", f"sk-ant-api03-{SECRET}", "sk-ant-oat01-"),
        ("claude", f"sk-ant-oat01-{SECRET} {SECRET}", "sk-ant-oat01-"),
        ("codex", SECRET, "auth.json"),
        ("codex", json.dumps([SECRET]), "auth.json"),
        ("codex", json.dumps({"tokens": {"access_token": SECRET}}), "refresh_token"),
        ("codex", "[" * 60000, "auth.json"),
        ("github", f"token {SECRET}", "ghp_"),
        ("github", f"ghp_{SECRET}", "ghp_"),
        ("generic", f"{SECRET}\x1b[31m", "control characters"),
        ("generic", "  five5  ", "6 bytes"),
    ],
)
def test_a_secret_of_another_shape_is_refused_saying_what_was_expected(
    api: Api, provider: str, secret: str, expected: str
) -> None:
    refused = connect(api, provider, secret, expect=400, name="NAME")
    assert refused.codes == {"/secret": "secret-refused"}
    (fault,) = refused.body["errors"]
    assert expected in fault["detail"]
    assert SECRET not in refused.content.decode()
    assert not ConnectedAccount.objects.exists()


@pytest.mark.parametrize("name", ["with-dash", "1ST", "PATH", "svc_token", "LD_PRELOAD"])
def test_a_generic_account_is_called_like_a_variable_that_may_be_set(api: Api, name: str) -> None:
    refused = connect(api, "generic", SECRET, name=name, expect=400)
    assert refused.codes == {"/name": "name-refused"}


def test_a_generic_account_has_to_be_called_something(api: Api) -> None:
    assert connect(api, "generic", SECRET, expect=400).codes == {"/name": "name-refused"}


@pytest.mark.parametrize(
    ("secret", "code"),
    [("", "blank"), (" \n", "blank"), ("x" * 65537, "max-length"), ("a\0b", "invalid-character"),
     ("\ud800", "invalid-character"), (5, "wrong-type"), ({"a": SECRET}, "wrong-type"),
     (None, "required")],
)  # fmt: skip
def test_what_is_no_secret_is_refused_without_being_repeated(
    api: Api, secret: Any, code: str
) -> None:
    body = {"ownerUserId": OWNER, "provider": "generic", "name": "A", "secret": secret}
    refused = api.post(PATH, body, expect=400)
    assert refused.codes == {"/secret": code}
    assert SECRET not in refused.content.decode()


def test_a_secret_of_more_bytes_than_workspaces_take_is_refused(api: Api) -> None:
    connect(api, "generic", "ü" * (MAX_SECRET_BYTES // 2), name="FITS")
    refused = connect(
        api, "generic", "ü" * (MAX_SECRET_BYTES // 2 + 1), name="TOO_LARGE", expect=400
    )
    assert refused.codes == {"/secret": "secret-refused"}


def test_an_unknown_provider_is_refused_by_name(api: Api) -> None:
    assert set(connect(api, "claud", SECRET, expect=400).codes) == {"/provider"}


def test_two_first_connections_at_once_are_one_account(transactional_db: None, api: Api) -> None:
    together = Barrier(4)

    def one(index: int) -> str:
        try:
            together.wait()
            return str(generic(Api(), secret=f"secret {index}")["connectedAccountId"])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(one, range(4)))) == 1


# ---------------------------------------------------------------- the key


def test_without_a_key_only_connecting_is_unavailable(api: Api, settings: Settings) -> None:
    first, second = generic(api), generic(api, "OTHER")
    settings.SVC_CREDENTIALS_KEY = ""
    refused = api.post(PATH, "not even an object", expect=503)
    assert refused.body["code"] == "credentials-key-unset"
    assert len(api.get(f"{PATH}?ownerUserId={OWNER}").body["items"]) == 2
    mark_invalid(api, first["connectedAccountId"])
    delete(api, second["connectedAccountId"])


def test_a_sealed_secret_opens_in_its_own_row_only(api: Api) -> None:
    mine = stored(generic(api)["connectedAccountId"])
    other = stored(generic(api, ownerUserId="usr_b", secret="another")["connectedAccountId"])
    assert SECRET.encode() not in bytes(mine.sealed or b"")
    other.sealed = mine.sealed
    with pytest.raises(SealError):
        reveal(other)
    mine.owner_user_id = "usr_b"
    with pytest.raises(SealError):
        reveal(mine)


def test_a_rotation_seals_everything_anew_and_may_be_repeated(api: Api, settings: Settings) -> None:
    ids = [generic(api, f"N{index}", f"secret {index}")["connectedAccountId"] for index in range(5)]
    delete(api, ids.pop())
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = key(2), key(1)
    assert reveal(stored(ids[0])) == "secret 0"
    before = bytes(stored(ids[0]).sealed or b"")
    assert "Would seal 4" in rotate("--dry-run")
    assert bytes(stored(ids[0]).sealed or b"") == before
    assert "Sealed 4" in rotate()
    assert "Sealed 0 accounts under the current key; 4 already were." in rotate()
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""
    assert [reveal(stored(one)) for one in ids] == [f"secret {index}" for index in range(4)]


def test_a_rotation_names_what_no_key_opens_and_does_the_rest(api: Api, settings: Settings) -> None:
    lost = generic(api)["connectedAccountId"]
    settings.SVC_CREDENTIALS_KEY = key(3)
    kept = generic(api, "OTHER")["connectedAccountId"]
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = key(2), key(3)
    with pytest.raises(CommandError, match=lost):
        rotate()
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""
    assert reveal(stored(kept)) == SECRET


def test_two_spellings_of_one_key_are_no_rotation(settings: Settings) -> None:
    for previous, same in (("", False), (key(2), False), (key(), True), (key().rstrip("="), True)):
        settings.SVC_CREDENTIALS_KEY_PREVIOUS = previous
        assert same_keys() is same


def test_a_rotation_without_a_key_says_so(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = ""
    with pytest.raises(CommandError, match="SVC_CREDENTIALS_KEY is not set"):
        rotate()


def rotate(*options: str) -> str:
    told = StringIO()
    call_command("rotatecredentials", *options, stdout=told)
    return told.getvalue()


# ---------------------------------------------------------------- taking out of use


def test_deleting_erases_the_secret_and_frees_the_name(api: Api) -> None:
    first = generic(api)
    gone = delete(api, first["connectedAccountId"]).body
    assert gone["status"] == "archived"
    assert stored(first["connectedAccountId"]).sealed is None
    with pytest.raises(SealError):
        reveal(stored(first["connectedAccountId"]))
    assert generic(api)["connectedAccountId"] != first["connectedAccountId"]
    assert len(api.get(f"{PATH}?ownerUserId={OWNER}").body["items"]) == 1


def test_a_foreign_an_unknown_and_a_deleted_account_are_absent_alike(api: Api) -> None:
    account = generic(api)["connectedAccountId"]
    for change in (delete, mark_invalid):
        for target, owner in ((account, "usr_b"), (str(uuid.uuid4()), OWNER)):
            assert change(api, target, owner, expect=404).body["code"] == (
                "connected-account-not-found"
            )
    delete(api, account)
    assert delete(api, account, expect=404).body["code"] == "connected-account-not-found"
    assert mark_invalid(api, account, expect=404).body["code"] == "connected-account-not-found"


def test_marking_invalid_twice_changes_nothing_the_second_time(api: Api) -> None:
    account = generic(api)["connectedAccountId"]
    first = mark_invalid(api, account).body
    assert first["status"] == "invalid"
    assert mark_invalid(api, account).body == first


def test_an_owner_lists_accounts_in_pages_newest_first(api: Api) -> None:
    made = [generic(api, f"N{index}")["connectedAccountId"] for index in range(5)]
    generic(api, ownerUserId="usr_b")
    first = api.get(f"{PATH}?ownerUserId={OWNER}&limit=3").body
    rest = api.get(f"{PATH}?ownerUserId={OWNER}&limit=3&cursor={first['nextCursor']}").body
    shown = [item["connectedAccountId"] for item in first["items"] + rest["items"]]
    assert shown == made[::-1]


# ---------------------------------------------------------------- nowhere in clear


def test_two_hundred_secrets_are_nowhere_in_the_database_in_clear(api: Api) -> None:
    canaries = [f"canary-{secrets.token_hex(12)}" for _ in range(200)]
    for index, canary in enumerate(canaries):
        generic(api, f"N{index}", canary)
    with connection.cursor() as cursor:
        content = []
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT t::text FROM "{table}" t')  # noqa: S608 - a table's own name
            content += [row[0] for row in cursor.fetchall()]
    whole = "\n".join(content)
    assert "N199" in whole
    leaked = [c for c in canaries if c in whole or c.encode().hex() in whole]
    assert leaked == []


def test_the_admin_shows_accounts_without_secrets_and_erases_them(api: Api) -> None:
    account = generic(api)["connectedAccountId"]
    get_user_model().objects.create_superuser("op", "op@example.org", "password")
    client = Client()
    client.login(username="op", password="password")
    page = client.get(reverse("admin:accounts_connectedaccount_change", args=[account]))
    assert b"API_TOKEN" in page.content
    assert b"sealed" not in page.content.lower()
    changelist = reverse("admin:accounts_connectedaccount_changelist")
    client.post(changelist, {"action": "mark_invalid", "_selected_action": [account]})
    assert stored(account).status == "invalid"
    client.post(changelist, {"action": "erase", "_selected_action": [account]})
    assert stored(account).sealed is None
