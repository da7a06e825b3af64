"""The order in which a request for a sandbox is looked at: its key, itself, what is there today."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django.fixtures import Settings

from tests.accounts.connected import ACCOUNTS, KEY, connect
from tests.conftest import OWNER, Api
from workspaces.models import PackageOverride, PublishedRepository, Sandbox

pytestmark = pytest.mark.django_db

PATH = "/v1/sandboxes"
HEADERS = {"idempotency-key": "k-1"}
SELECTION = {"provider": "github", "installationId": "1", "installationRepositoryId": "2"}


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY


def refuse(package: str) -> None:
    PackageOverride.objects.create(name=package, packages=[])


@pytest.fixture
def changed(request_body: dict[str, Any], settings: Settings, api: Api) -> dict[str, Any]:
    """A request that was accepted under the key, and that would be refused in every way now."""
    account = connect("claude")
    body = {**request_body, "credentials": {"claude": account}}
    body["spec"] |= {
        "tooling": {"packages": [{"id": "jq"}]},
        "runtime": {
            "resources": {"memoryMb": 512},
            "network": {"egress": {"presets": ["python"]}},
        },
    }
    first = api.post(PATH, body, headers=HEADERS, expect=202)
    refuse("jq")
    settings.WORKSPACE_MAX_MEMORY_MB = 256
    settings.SVC_EGRESS_PRESETS = "/nowhere/presets.toml"
    settings.OWNER_MAX_WORKSPACES = 1
    settings.REGISTRY_NAME = "renamed"
    PublishedRepository.objects.create(
        registry_id="default", name=body["repository"], owner_user_id="usr_other"
    )
    api.request("DELETE", f"{ACCOUNTS}/{account}?ownerUserId={OWNER}", expect=200)
    return {"body": body, "first": first.body}


def test_a_repeated_request_is_answered_whatever_has_changed(
    api: Api, changed: dict[str, Any]
) -> None:
    again = api.post(PATH, changed["body"], headers=HEADERS, expect=202)
    assert again.body == changed["first"]
    assert again.headers["idempotency-replayed"] == "true"
    # Without the key it is a new request, and refused.
    api.post(PATH, changed["body"], expect=404)


def test_another_request_under_the_key_is_a_409_whatever_has_changed(
    api: Api, changed: dict[str, Any]
) -> None:
    other = {**changed["body"], "tag": "v2"}
    answer = api.post(PATH, other, headers=HEADERS, expect=409)
    assert answer.body["code"] == "idempotency-key-reused"
    assert Sandbox.objects.count() == 1


@pytest.mark.parametrize(
    ("runtime", "code"),
    [
        ({"resources": {"memoryMb": 1001}}, "above-ceiling"),
        ({"network": {"egress": {"presets": ["nobodys"]}}}, "unknown-preset"),
    ],
)
def test_ceilings_and_presets_are_looked_at_before_selections(
    api: Api,
    request_body: dict[str, Any],
    settings: Settings,
    runtime: dict[str, Any],
    code: str,
) -> None:
    settings.WORKSPACE_MAX_MEMORY_MB = 1000
    request_body["spec"]["runtime"] = runtime
    answer = api.post(PATH, {**request_body, "sourceSelection": SELECTION}, expect=400)
    assert set(answer.codes.values()) == {code}


def test_selections_are_looked_at_before_packages(api: Api, request_body: dict[str, Any]) -> None:
    """As the specification has it ("Sandbox creation", 4 and 5)."""
    refuse("jq")
    request_body["spec"]["tooling"] = {"packages": [{"id": "jq"}]}
    api.post(PATH, {**request_body, "sourceSelection": SELECTION}, expect=503)
    api.post(PATH, request_body, expect=400)


def test_packages_are_looked_at_before_repository_and_accounts(
    api: Api, request_body: dict[str, Any]
) -> None:
    refuse("jq")
    request_body["spec"]["tooling"] = {"packages": [{"id": "jq"}]}
    nobodys = {**request_body, "credentials": {"claude": "nobodys"}}
    answer = api.post(PATH, nobodys, expect=400)
    assert answer.codes == {"/spec/tooling/packages/0/id": "package-refused"}
    PublishedRepository.objects.create(
        registry_id="default", name=request_body["repository"], owner_user_id="usr_other"
    )
    answer = api.post(PATH, request_body, expect=400)
    assert answer.codes == {"/spec/tooling/packages/0/id": "package-refused"}
