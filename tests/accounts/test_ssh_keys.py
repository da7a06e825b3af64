"""Registering, listing, deleting and resolving SSH keys."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.models import SshKey
from accounts.public_keys import parse_public_key
from tests.accounts.keys import ed25519, generated, line, string
from tests.conftest import OWNER, Answer, Api

pytestmark = pytest.mark.django_db
PATH = "/v1/ssh-keys"
RESOLVE = f"{PATH}/resolve-principal"
TOKEN = {"x-svc-gateway-token": "secret"}


@pytest.fixture(autouse=True)
def _token(settings: Settings) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"


def plain(comment: str = "") -> str:
    """A key that is the same in every process: pytest-xdist compares the parameters."""
    return line("ssh-ed25519", string(b"\1" * 32), comment=comment)


def register(api: Api, key: str, *, expect: int = 201, **members: str) -> Answer:
    return api.post(PATH, {"ownerUserId": OWNER, "publicKey": key, **members}, expect=expect)


def delete(api: Api, key_id: str, owner: str = OWNER, *, expect: int = 200) -> Answer:
    return api.request("DELETE", f"{PATH}/{key_id}?ownerUserId={owner}", expect=expect)


def resolve(api: Api, key: str, *, expect: int = 200) -> Answer:
    algorithm, blob, *_ = key.split()
    body = {"algo": algorithm, "publicKeyBase64": blob}
    return api.post(RESOLVE, body, expect=expect, headers=TOKEN)


def test_a_key_is_registered_and_shown_without_itself(api: Api) -> None:
    text = ed25519("ada@laptop")
    answer = register(api, text + "\n")
    shown = answer.body
    assert answer.headers["location"] == f"{PATH}/{shown['sshKeyId']}"
    assert set(shown) == {
        "sshKeyId", "ownerUserId", "name", "algorithm", "fingerprint", "createdAt",
    }  # fmt: skip
    assert shown["fingerprint"] == parse_public_key(text).fingerprint
    assert (shown["ownerUserId"], shown["name"]) == (OWNER, "ada@laptop")
    assert text.split()[1] not in answer.content.decode()
    assert SshKey.objects.get().public_key == " ".join(text.split()[:2])


def test_a_key_is_called_by_its_name_or_comment_or_fingerprint(api: Api) -> None:
    assert register(api, ed25519("c"), name=" My   key ").body["name"] == "My key"
    assert len(register(api, ed25519("c" * 500)).body["name"]) == 120
    bare = register(api, ed25519()).body
    assert bare["name"] == f"ssh-ed25519 {bare['fingerprint'][7:15]}"


def test_registering_again_gives_the_same_record_as_it_is(api: Api) -> None:
    text = ed25519("first")
    first = register(api, text).body
    assert register(api, text, name="Second").body == first


def test_a_deleted_key_comes_back_under_its_id_with_the_new_name(api: Api) -> None:
    text = ed25519("first")
    first = register(api, text).body
    assert delete(api, first["sshKeyId"]).body == first
    resolve(api, text, expect=404)
    assert register(api, text, name="Second").body == {**first, "name": "Second"}
    assert resolve(api, text).body["sshKeyId"] == first["sshKeyId"]


def test_an_active_key_of_another_owner_is_taken_until_it_is_deleted(api: Api) -> None:
    text = ed25519()
    first = register(api, text).body
    assert register(api, text, expect=409, ownerUserId="usr_b").body["code"] == "ssh-key-taken"
    delete(api, first["sshKeyId"])
    register(api, text, ownerUserId="usr_b")
    assert resolve(api, text).body["principalId"] == "usr_b"
    assert register(api, text, expect=409).body["code"] == "ssh-key-taken"


def test_a_foreign_an_unknown_and_a_deleted_key_are_absent_alike(api: Api) -> None:
    key_id = register(api, ed25519()).body["sshKeyId"]
    codes = [
        delete(api, key_id, "usr_b", expect=404).body["code"],
        delete(api, str(uuid.uuid4()), expect=404).body["code"],
        delete(api, key_id).status,
        delete(api, key_id, expect=404).body["code"],
    ]
    assert codes == ["ssh-key-not-found", "ssh-key-not-found", 200, "ssh-key-not-found"]
    assert delete(api, "x", expect=404).body["code"] == "not-found"


def test_an_owner_lists_the_active_keys_in_pages_newest_first(api: Api) -> None:
    made = [register(api, ed25519()).body["sshKeyId"] for _ in range(5)]
    register(api, ed25519(), ownerUserId="usr_b")
    delete(api, made.pop(2))
    first = api.get(f"{PATH}?ownerUserId={OWNER}&limit=3").body
    rest = api.get(f"{PATH}?userId={OWNER}&limit=3&cursor={first['nextCursor']}").body
    assert "nextCursor" not in rest
    assert [item["sshKeyId"] for item in first["items"] + rest["items"]] == made[::-1]
    assert api.get(PATH, expect=400).codes == {"ownerUserId": "required"}
    assert set(api.get(f"{PATH}?ownerUserId=a&limit=201", expect=400).codes) == {"limit"}


def test_a_private_key_is_refused_first_and_repeated_nowhere(api: Api, tmp_path: Path) -> None:
    private = generated(tmp_path, "-t", "ed25519").read_text()
    for text in (private, "x" * 20_000 + private, private + "\x07"):
        answer = register(api, text, expect=400)
        assert answer.codes == {"/publicKey": "private-key-refused"}
        assert private.split("\n")[1] not in answer.content.decode()
    assert not SshKey.objects.exists()


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (5, "wrong-type"),
        (" ", "blank"),
        (plain("\x07"), "control-character"),
        (plain("\u202e"), "control-character"),
        (plain("x" * 17_000), "max-length"),
        (f"no-pty {plain()}", "key-options-refused"),
        (f"{plain()}\r\n{plain()}", "not-one-line"),
    ],
)
def test_what_is_no_key_is_a_fault_of_its_member(api: Api, key: object, code: str) -> None:
    body = {"ownerUserId": OWNER, "publicKey": key}
    assert api.post(PATH, body, expect=400).codes == {"/publicKey": code}


def test_the_gateway_finds_the_owner_whatever_it_calls_the_algorithm(api: Api) -> None:
    text = ed25519()
    shown = register(api, text).body
    body = {"algo": "anything", "publicKeyBase64": text.split()[1]}
    assert api.post(RESOLVE, body, expect=200, headers=TOKEN).body == {
        "principalId": OWNER,
        "sshKeyId": shown["sshKeyId"],
        "fingerprint": shown["fingerprint"],
    }


@pytest.mark.parametrize("blob", ["AAAA", "A" * 16384])
def test_what_is_no_registered_key_is_absent(api: Api, blob: str) -> None:
    answer = api.post(RESOLVE, {"algo": "x", "publicKeyBase64": blob}, expect=404, headers=TOKEN)
    assert answer.body["code"] == "ssh-key-not-found"


@pytest.mark.parametrize("blob", ["=", "A", "ä", "!!!!", "AA", "AA-_", "AAAA AAAA", "AA==AAAA"])
def test_a_key_that_is_not_base64_is_a_fault_of_its_member(api: Api, blob: str) -> None:
    answer = api.post(RESOLVE, {"algo": "x", "publicKeyBase64": blob}, expect=400, headers=TOKEN)
    assert answer.codes == {"/publicKeyBase64": "not-base64"}


def test_the_token_is_looked_at_before_the_body(api: Api, settings: Settings) -> None:
    for headers in ({}, {"x-svc-gateway-token": ""}, {"x-svc-gateway-token": "s\u00e9cret"}):
        answer = api.request("POST", RESOLVE, raw=b"{", headers=headers, expect=401)
        assert answer.body["code"] == "gateway-token-invalid"
    assert api.post(RESOLVE, {}, expect=400, headers=TOKEN).codes == {
        "/algo": "required",
        "/publicKeyBase64": "required",
    }
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = ""
    for headers in ({}, TOKEN):
        answer = api.request("POST", RESOLVE, raw=b"{", headers=headers, expect=503)
        assert answer.body["code"] == "gateway-token-unset"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("owners", [[OWNER] * 6, [f"usr_{number}" for number in range(6)]])
def test_one_key_registered_at_once_is_active_once(owners: list[str]) -> None:
    text = ed25519()
    gate = Barrier(len(owners))

    def one(owner: str) -> Answer:
        try:
            gate.wait()
            body = {"ownerUserId": owner, "publicKey": text}
            return Api().request("POST", PATH, body)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(owners)) as pool:
        answers = list(pool.map(one, owners))
    made = [answer.body["sshKeyId"] for answer in answers if answer.status == 201]
    refused = {answer.body["code"] for answer in answers if answer.status != 201}
    assert SshKey.objects.active().count() == 1
    assert len(set(made)) == 1
    assert len(made) == (6 if len(set(owners)) == 1 else 1)
    assert refused == (set() if len(set(owners)) == 1 else {"ssh-key-taken"})


def test_an_operator_deletes_keys_in_the_admin(api: Api) -> None:
    key_id = register(api, ed25519()).body["sshKeyId"]
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    page = reverse("admin:accounts_sshkey_changelist")
    assert client.get(page, {"q": key_id}).status_code == 200
    client.post(page, {"action": "revoke", "_selected_action": [key_id]})
    assert not SshKey.objects.active().exists()
