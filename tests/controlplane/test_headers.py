"""Request ids, CORS, HEAD and OPTIONS, and what browsers are told."""

from __future__ import annotations

import uuid

import pytest
from pytest_django.fixtures import Settings

from tests.conftest import Api

PREFLIGHT = {"origin": "http://web.example", "access-control-request-method": "POST"}


@pytest.mark.parametrize("given", ["abc", "a" * 64, "A1._:-z"])
def test_a_safe_request_id_comes_back(api: Api, given: str) -> None:
    assert api.get("/healthz", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given", ["", "a" * 65, "a b", "a\x00", 'a"', "é", "a\r\nx: y", "${x}", "a\n"]
)
def test_another_request_id_is_replaced(api: Api, given: str) -> None:
    answer = api.get("/healthz", headers={"x-request-id": given})
    assert uuid.UUID(answer.headers["x-request-id"]).version == 7


def test_two_requests_have_two_ids(api: Api) -> None:
    ids = {api.get("/healthz").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


def test_every_origin_is_allowed_by_default_and_echoed(api: Api) -> None:
    answer = api.get("/healthz", headers={"origin": "http://web.example"})
    assert answer.headers["access-control-allow-origin"] == "http://web.example"
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"location", "x-request-id", "idempotency-replayed"} <= set(exposed)
    assert "origin" in answer.headers["vary"].lower()
    assert "access-control-allow-credentials" not in answer.headers


def test_a_preflight_is_answered_with_204(api: Api) -> None:
    answer = api.request("OPTIONS", "/v1/sandboxes", headers=PREFLIGHT, expect=204)
    assert answer.content == b""
    assert answer.headers["access-control-allow-origin"] == "http://web.example"
    methods = answer.headers["access-control-allow-methods"].split(", ")
    assert set(methods) == {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert {"content-type", "authorization", "idempotency-key", "x-svc-gateway-token"} <= allowed
    assert answer.headers["access-control-max-age"] == "86400"


@pytest.mark.django_db
def test_an_origin_that_is_not_listed_is_served_without_permission(
    api: Api, settings: Settings
) -> None:
    settings.CORS_ALLOWED_ORIGIN_REGEXES = []
    settings.CORS_ALLOWED_ORIGINS = ["http://web.example"]
    listed = api.get("/healthz", headers={"origin": "http://web.example"})
    assert listed.headers["access-control-allow-origin"] == "http://web.example"
    other = {"origin": "http://web.example.evil"}
    assert "access-control-allow-origin" not in api.get("/healthz", headers=other).headers
    preflight = {**PREFLIGHT, **other}
    answer = api.request("OPTIONS", "/v1/sandboxes", headers=preflight, expect=204)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/v1/workspaces", f"/v1/workspaces/{uuid.UUID(int=7)}"]
)
def test_problems_can_be_read_by_other_origins_too(api: Api, path: str) -> None:
    answer = api.request("GET", path, headers={"origin": "http://web.example"})
    assert answer.status in {400, 404}
    assert answer.headers["access-control-allow-origin"] == "http://web.example"


def test_a_body_that_is_too_large_is_refused_readably_for_other_origins(api: Api) -> None:
    headers = {"origin": "http://web.example", "content-length": "99999999"}
    answer = api.get("/healthz", headers=headers, expect=413)
    assert answer.headers["access-control-allow-origin"] == "http://web.example"


def test_options_answers_with_the_allowed_methods_and_no_body(api: Api) -> None:
    answer = api.request("OPTIONS", "/v1/sandboxes", expect=200)
    assert answer.headers["Allow"] == "POST, OPTIONS"
    assert answer.content == b""


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/metrics", "/healthz"])
def test_options_of_what_is_no_resource_is_answered_too(api: Api, path: str) -> None:
    answer = api.request("OPTIONS", path, expect=200)
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert answer.content == b""


@pytest.mark.django_db
def test_head_answers_like_get_without_a_body(api: Api) -> None:
    for path in ("/", "/healthz", "/v1/workspaces?ownerUserId=a"):
        head, get = api.request("HEAD", path, expect=200), api.get(path)
        assert head.content == b""
        assert head.headers["content-type"] == get.headers["content-type"]
    assert api.request("HEAD", "/v1/workspaces", expect=400).content == b""
    assert api.request("HEAD", f"/v1/workspaces/{uuid.uuid4()}", expect=404).content == b""


def test_browsers_are_told_that_answers_are_data(api: Api) -> None:
    headers = api.get("/healthz").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "script-src" not in headers["content-security-policy"]
