"""With ``SVC_REQUIRE_OWNER`` an id alone opens nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.models import SshKey
from accounts.public_keys import parse_public_key
from accounts.services import register_ssh_key
from tests.accounts.keys import ed25519
from tests.conformance import document
from tests.conftest import OWNER, Answer, Api
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db

MISSING = "019af2c0-0000-7000-8000-00000000000a"


def routes_by_id() -> list[tuple[str, str]]:
    """Return method and path of all that names one thing of an owner, by the description."""
    found = []
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            names = {each["name"] for each in operation.get("parameters", [])}
            if "{" in path and "ownerUserId" in names:
                found.append((method.upper(), path))
    return found


def place_of(path: str) -> str:
    """Return a path that leads to something that is not there."""
    told = {"sequence": "1", "port": "8000"}
    return re.sub(r"\{(\w+)\}", lambda name: told.get(name[1], MISSING), path)


def call(api: Api, method: str, path: str, owner: str | None) -> Answer:
    """Ask for something that is not there, with an owner or without."""
    place = place_of(path)
    query = "" if owner is None else f"?ownerUserId={owner}"
    return api.request(method, place + query, None if method == "GET" else {})


def test_the_routes_by_id_are_known() -> None:
    assert len(routes_by_id()) > 15


@pytest.mark.parametrize(("method", "path"), routes_by_id())
def test_who_does_not_say_whose_it_is_gets_nothing(
    api: Api, settings: Settings, method: str, path: str
) -> None:
    settings.SVC_REQUIRE_OWNER = True
    answer = call(api, method, path, None)
    assert (answer.status, answer.body["code"]) == (400, "validation-failed")
    assert "required" in {answer.codes.get("ownerUserId"), answer.codes.get("/ownerUserId")}
    said = call(api, method, path, OWNER)
    assert "required" not in {said.codes.get("ownerUserId"), said.codes.get("/ownerUserId")}


def test_an_id_opens_what_it_names_only_where_the_operator_allows_it(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    workspace = api.post("/v1/sandboxes", request_body).body["workspaceId"]
    path = f"/v1/workspaces/{workspace}"
    settings.SVC_REQUIRE_OWNER = False
    api.get(path)
    settings.SVC_REQUIRE_OWNER = True
    api.get(path, expect=400)
    api.get(f"{path}?userId={OWNER}")
    api.get(f"{path}?ownerUserId=somebody", expect=404)
    name = {"name": "Mine"}
    api.patch(f"{path}/name", name, expect=400)
    assert Workspace.objects.get(pk=workspace).name != "Mine"
    api.patch(f"{path}/name", {**name, "ownerUserId": OWNER})


WITHOUT_BODY = [each for each in routes_by_id() if each[0] in {"GET", "DELETE"}]


@pytest.mark.parametrize(("method", "path"), WITHOUT_BODY)
@pytest.mark.parametrize("member", ["ownerUserId", "userId"])
def test_a_body_may_name_the_owner_whatever_the_method(
    api: Api, settings: Settings, method: str, path: str, member: str
) -> None:
    settings.SVC_REQUIRE_OWNER = True
    place = place_of(path)
    said = api.request(method, place, {member: OWNER})
    assert not {"ownerUserId", "/ownerUserId"} & said.codes.keys()
    other = api.request(method, f"{place}?ownerUserId=somebody", {member: OWNER}, expect=400)
    assert other.codes["ownerUserId"] == "owner-ambiguous"


@pytest.mark.parametrize(("method", "path"), WITHOUT_BODY)
def test_a_body_where_none_is_used_holds_nothing_but_the_owner(
    api: Api, method: str, path: str
) -> None:
    place = place_of(path)
    stray = api.request(method, place, {"ownerUserId": OWNER, "force": True}, expect=400)
    assert stray.codes["/force"] == "unknown-member"
    for body in ([OWNER], OWNER):
        assert api.request(method, place, body, expect=400).codes[""] == "wrong-type"
    assert api.request(method, place, raw=b"{", expect=400).body["code"] == "malformed-json"


def test_nothing_is_deleted_for_whom_the_body_does_not_name(api: Api) -> None:
    key = register_ssh_key(owner_user_id=OWNER, key=parse_public_key(ed25519()), name=None)
    path = f"/v1/ssh-keys/{key.pk}"
    api.request("DELETE", path, {"ownerUserId": "somebody"}, expect=404)
    assert SshKey.objects.filter(pk=key.pk, deleted_at__isnull=True).exists()
    api.request("DELETE", path, {"ownerUserId": OWNER}, expect=200)
    assert not SshKey.objects.filter(pk=key.pk, deleted_at__isnull=True).exists()


def test_an_owner_in_the_body_of_a_file_call_is_no_file(api: Api, settings: Settings) -> None:
    settings.SVC_MAX_BODY_BYTES = 1000
    path = f"/v1/workspaces/{MISSING}/files?path=a"
    api.request("DELETE", path, {"ownerUserId": OWNER}, expect=404)
    api.request("DELETE", path, {"ownerUserId": "x" * 1000}, expect=413)
    # What is written is content, whatever it looks like.
    api.request("PUT", path, {"force": True}, expect=404)
