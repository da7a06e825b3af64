"""An authenticating proxy names the caller: who that is, and what he may leave out."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.logins.models import LoginAttempt
from controlplane.security.addresses import client_address, is_trusted_proxy
from runs.models import Run
from tests.accounts.keys import ed25519
from tests.conftest import OWNER, Api
from tests.controlplane.test_settings import load, value_of
from tests.security.owned import HEADER, STRANGER, call, fill, require_identity

pytestmark = pytest.mark.django_db
GATEWAY = {"x_svc_gateway_token": "gateway-token"}


@pytest.fixture(autouse=True)
def _identity(settings: Settings) -> None:
    require_identity(settings)


def test_the_caller_need_not_say_who_he_is(api: Api, request_body: dict[str, Any]) -> None:
    del request_body["ownerUserId"]
    made = call(api, "POST", "/v1/sandboxes", request_body, caller=OWNER)
    assert made.status == 202
    path = f"/v1/workspaces/{made.body['workspaceId']}"
    assert call(api, "GET", path, caller=OWNER).body["ownerUserId"] == OWNER
    (listed,) = call(api, "GET", "/v1/workspaces", caller=OWNER).body["items"]
    assert listed["workspaceId"] == made.body["workspaceId"]
    assert call(api, "GET", f"{path}?userId={OWNER}", caller=OWNER).status == 200
    assert call(api, "GET", "/v1/workspaces", caller=STRANGER).body["items"] == []


def test_idempotency_keys_belong_to_the_caller(api: Api, request_body: dict[str, Any]) -> None:
    del request_body["ownerUserId"]
    answers = [
        call(api, "POST", "/v1/sandboxes", request_body, caller=caller, idempotency_key="one")
        for caller in (OWNER, STRANGER, OWNER)
    ]
    ids = [answer.body["sandboxId"] for answer in answers]
    assert ids[0] == ids[2] != ids[1]
    assert "idempotency-replayed" not in answers[1].headers


def test_a_cursor_of_another_list_leads_to_nothing_of_its_owner(api: Api) -> None:
    for _ in range(3):
        fill_one(api, OWNER)
    first = call(api, "GET", "/v1/ssh-keys?limit=1", caller=OWNER).body
    path = f"/v1/ssh-keys?limit=1&cursor={first['nextCursor']}"
    assert len(call(api, "GET", path, caller=OWNER).body["items"]) == 1
    assert call(api, "GET", path, caller=STRANGER).body == {"items": []}


def fill_one(api: Api, owner: str) -> None:
    """Register a key."""
    made = call(api, "POST", "/v1/ssh-keys", {"publicKey": ed25519()}, caller=owner)
    assert made.body["ownerUserId"] == owner


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("", "blank"),
        ("   ", "blank"),
        ("a,b", "repeated-header"),
        ("a, a", "repeated-header"),
        ("x" * 201, "max-length"),
        ("a\x07b", "control-character"),
        ("\xff\xfe", "malformed-text"),
    ],
)
def test_a_header_that_names_no_owner_is_refused(api: Api, shown: str, code: str) -> None:
    answer = call(api, "GET", "/v1/workspaces", caller=shown)
    assert (answer.status, answer.codes) == (400, {HEADER: code})


def test_an_owner_may_hold_any_letter(api: Api) -> None:
    name = "Zoë Ærø 猫"
    made = call(
        api,
        "POST",
        "/v1/ssh-keys",
        {"publicKey": ed25519()},
        caller=name.encode().decode("latin-1"),
    )
    assert made.body["ownerUserId"] == name


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/readyz", "/v1/system/setup-state", "/openapi.json", "/docs"]
)
def test_what_is_of_nobody_needs_no_caller(path: str) -> None:
    assert Client().get(path).status_code == 200


def test_a_webhook_is_known_by_its_signature(api: Api, settings: Settings) -> None:
    settings.SCM_APP_WEBHOOK_SECRET = "a-secret"
    headers = {"x-github-delivery": "1", "x-github-event": "ping", "x-hub-signature-256": "x"}
    refused = api.post("/v1/scm/webhooks", {}, headers=headers, expect=401)
    assert refused.body["code"] == "scm-webhook-signature-invalid"


def test_the_gateway_works_for_whom_it_names(api: Api) -> None:
    place = fill()
    key = ed25519()
    call(api, "POST", "/v1/ssh-keys", {"publicKey": key}, caller=OWNER)
    asked = {"algo": key.split()[0], "publicKeyBase64": key.split()[1]}
    found = call(api, "POST", "/v1/ssh-keys/resolve-principal", asked, **GATEWAY)
    assert found.body["principalId"] == OWNER
    target = place.path("/v1/workspaces/{workspaceId}/ssh-target")
    assert call(api, "GET", target, x_svc_principal_id=OWNER, **GATEWAY).status == 200
    stranger = call(api, "GET", target, x_svc_principal_id=STRANGER, **GATEWAY)
    assert stranger.body["code"] == "workspace-not-found"
    session = {
        "ownerUserId": OWNER,
        "workspaceId": place.ids["workspaceId"],
        "harnessId": "ssh",
        "mode": "interactive",
    }
    made = call(api, "POST", "/v1/runs", session, **GATEWAY)
    assert (made.status, made.body["recorded"]) == (201, True)
    path = f"/v1/runs/{made.body['runId']}"
    begun = call(api, "PATCH", path, {"ownerUserId": OWNER, "status": "running"}, **GATEWAY)
    assert begun.body["status"] == "running"
    assert call(api, "GET", f"{path}?ownerUserId={OWNER}", **GATEWAY).status == 200
    unrecorded = call(api, "POST", "/v1/runs", session, x_svc_record="none", **GATEWAY)
    assert (unrecorded.status, unrecorded.body["recorded"]) == (201, False)
    ended = {"ownerUserId": OWNER, "status": "cancelled"}
    path = f"/v1/runs/{unrecorded.body['runId']}"
    assert call(api, "PATCH", path, ended, **GATEWAY).body["status"] == "cancelled"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/workspaces?ownerUserId=usr_test"),
        ("GET", "/v1/runs?ownerUserId=usr_test"),
        ("GET", "/v1/workspaces/{workspaceId}"),
        ("DELETE", "/v1/workspaces/{workspaceId}"),
        ("GET", "/v1/runs/{runId}/timeline"),
        ("GET", "/v1/ssh-keys?ownerUserId=usr_test"),
    ],
)
def test_the_gateways_token_opens_nothing_else(api: Api, method: str, path: str) -> None:
    answer = call(api, method, fill().path(path), **GATEWAY)
    assert (answer.status, answer.body["code"]) == (401, "caller-missing")


def test_a_caller_is_no_gateway(api: Api) -> None:
    place = fill()
    target = place.path("/v1/workspaces/{workspaceId}/ssh-target")
    answer = call(api, "GET", target, caller=OWNER, x_svc_principal_id=OWNER)
    assert (answer.status, answer.body["code"]) == (401, "gateway-token-invalid")
    session = {"workspaceId": place.ids["workspaceId"], "harnessId": "x", "mode": "interactive"}
    made = call(api, "POST", "/v1/runs", session, caller=OWNER)
    assert made.body["recorded"] is False
    assert Run.objects.get(pk=made.body["runId"]).owner_user_id == OWNER


def test_without_the_setting_the_header_means_nothing(api: Api, settings: Settings) -> None:
    settings.SVC_TRUSTED_OWNER_HEADER = ""
    path = f"/v1/workspaces?ownerUserId={OWNER}"
    assert call(api, "GET", path, caller=STRANGER).status == 200
    assert call(api, "GET", "/v1/workspaces", caller=STRANGER).status == 400


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::7", True),
        ("fe80::1%eth0", False),
        ("11.0.0.1", False),
        ("", False),
        ("unix:", False),
    ],
)
def test_a_proxy_is_known_by_its_address(settings: Settings, address: str, trusted: bool) -> None:
    settings.SVC_TRUSTED_PROXIES = ["10.0.0.0/8", "2001:db8::/32"]
    assert is_trusted_proxy(address) is trusted


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9, nonsense", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3,10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
    ],
)
def test_a_client_is_whom_trusted_proxies_name(
    settings: Settings, peer: str, forwarded: str, client: str
) -> None:
    settings.SVC_TRUSTED_PROXIES = ["10.0.0.0/8"]
    assert client_address(peer, forwarded) == client


def test_failed_logins_count_for_the_client_behind_the_proxy(settings: Settings) -> None:
    settings.SVC_TRUSTED_PROXIES = ["10.0.0.0/8"]
    form = {"username": "ada", "password": "wrong"}
    for peer in ("10.0.0.1", "192.0.2.1"):
        Client(REMOTE_ADDR=peer, headers={"x-forwarded-for": "203.0.113.9"}).post(
            "/admin/login/", form
        )
    addresses = set(LoginAttempt.objects.values_list("address", flat=True))
    assert addresses == {"203.0.113.9", "192.0.2.1"}


# ---------------------------------------------------------------- settings


def test_networks_and_addresses_are_taken() -> None:
    told = {"SVC_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8,2001:db8::/32"}
    assert value_of("s.SVC_TRUSTED_PROXIES", told) == ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"SVC_TRUSTED_PROXIES": "10.0.0.1/8"}, "SVC_TRUSTED_PROXIES"),
        ({"SVC_TRUSTED_PROXIES": "proxy.example"}, "SVC_TRUSTED_PROXIES"),
        ({"SVC_TRUSTED_OWNER_HEADER": "X-User"}, "SVC_TRUSTED_PROXIES"),
        (
            {"SVC_TRUSTED_OWNER_HEADER": "X User", "SVC_TRUSTED_PROXIES": "::1"},
            "SVC_TRUSTED_OWNER_HEADER",
        ),
        (
            {"SVC_TRUSTED_OWNER_HEADER": "Authorization", "SVC_TRUSTED_PROXIES": "::1"},
            "SVC_TRUSTED_OWNER_HEADER",
        ),
        (
            {"SVC_TRUSTED_OWNER_HEADER": "x-svc-principal-id", "SVC_TRUSTED_PROXIES": "::1"},
            "SVC_TRUSTED_OWNER_HEADER",
        ),
    ],
)
def test_settings_that_would_trust_anybody_or_nobody_are_faults(
    told: dict[str, str], name: str
) -> None:
    done = load(told)
    assert done.returncode == 1
    assert name in done.stderr
