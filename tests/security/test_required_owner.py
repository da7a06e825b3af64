"""With ``SVC_REQUIRE_OWNER`` an id alone opens nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pytest_django.fixtures import Settings

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


def call(api: Api, method: str, path: str, owner: str | None) -> Answer:
    """Ask for something that is not there, with an owner or without."""
    told = {"sequence": "1", "port": "8000"}
    place = re.sub(r"\{(\w+)\}", lambda name: told.get(name[1], MISSING), path)
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
