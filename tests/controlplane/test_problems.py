"""Every failure has the common body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from tests.conftest import Api

pytestmark = pytest.mark.django_db

MISSING = "019af2c0-0000-7000-8000-00000000000a"
MEMBERS = {"_tag", "type", "title", "status", "detail", "code", "message", "errors", "requestId"}


def assert_problem(answer: Any, code: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.body) >= MEMBERS
    assert answer.body["status"] == answer.status
    assert answer.body["code"] == code
    assert answer.body["type"].endswith(code)
    assert answer.body["message"] == answer.body["detail"]
    assert answer.body["requestId"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1/nothing", "/v1", "/v1/workspaces/", "/v1//workspaces", "/v1/%00"]
)
def test_an_unknown_route_is_a_404_in_the_common_shape(api: Api, path: str) -> None:
    assert_problem(api.get(path, expect=404), "not-found")
    assert_problem(api.post(path, {}, expect=404), "not-found")


@pytest.mark.parametrize(
    ("method", "path", "status", "tag"),
    [
        ("GET", f"/v1/workspaces/{MISSING}", 404, "WorkspaceNotFoundError"),
        ("POST", "/v1/sandboxes", 400, "WorkspaceBadRequestError"),
        ("GET", f"/v1/runs/{MISSING}/loss", 404, "RunNotFoundError"),
        ("POST", "/v1/ssh-keys/resolve-principal", 503, "SshKeyServiceUnavailableError"),
        ("GET", "/v1/connected-accounts", 400, "ConnectedAccountBadRequestError"),
        ("GET", f"/v1/profiles/{MISSING}/credential-bindings", 404, "ProfileNotFoundError"),
        ("GET", "/v1/registries/another", 404, "RegistriesNotFoundError"),
        ("GET", "/v1/scm/installations", 400, "ScmBadRequestError"),
        ("GET", "/v1/packages/resolve", 400, "PackagesBadRequestError"),
        ("GET", "/v1/nothing", 404, "SystemNotFoundError"),
        ("DELETE", "/v1/runs", 405, "RunMethodNotAllowedError"),
    ],
)
def test_a_problem_names_the_class_that_typed_clients_know_it_by(
    api: Api, settings: Settings, method: str, path: str, status: int, tag: str
) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = ""
    answer = api.request(method, path, expect=status)
    assert answer.body["_tag"] == tag


@pytest.mark.parametrize("name", ["x", "1", "%F0%9F%92%A9", MISSING.upper(), "a" * 5000])
@pytest.mark.parametrize("rest", ["", "/attempts", "/events"])
def test_a_malformed_id_in_a_path_is_a_404(api: Api, name: str, rest: str) -> None:
    assert_problem(api.get(f"/v1/workspaces/{name}{rest}", expect=404), "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/workspaces", "GET, POST, HEAD, OPTIONS"),
        ("PUT", "/v1/sandboxes", "POST, OPTIONS"),
        ("GET", "/v1/sandboxes", "POST, OPTIONS"),
        ("POST", f"/v1/workspaces/{MISSING}", "GET, PATCH, DELETE, HEAD, OPTIONS"),
        ("GET", f"/v1/workspaces/{MISSING}/name", "PATCH, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("POST", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("POST", "/docs", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/workspaces", "GET, POST, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_allowed_ones(
    api: Api, method: str, path: str, allow: str
) -> None:
    answer = api.request(method, path, expect=405)
    assert_problem(answer, "method-not-allowed")
    assert answer.headers["Allow"] == allow


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "*/*",
        "application/*",
        "text/plain",
        "application/merge-patch+json",
        "application/x-www-form-urlencoded",
        "🙂",
        "x",
    ],
)
def test_another_content_type_is_a_415(
    api: Api, request_body: dict[str, Any], content_type: str
) -> None:
    answer = api.post("/v1/sandboxes", request_body, expect=415, content_type=content_type)
    assert_problem(answer, "unsupported-media-type")
    # Whoever uses curl and forgets the header reads what it has to be.
    assert answer.body["detail"].endswith(" Send application/json.")


def test_a_multipart_body_is_a_415(api: Api) -> None:
    answer = api.post(
        "/v1/sandboxes",
        raw=b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n",
        content_type="multipart/form-data; boundary=x",
        expect=415,
    )
    assert_problem(answer, "unsupported-media-type")


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"]
)
def test_a_body_of_the_right_type_is_read_however_that_is_written(
    api: Api, request_body: dict[str, Any], content_type: str
) -> None:
    api.post("/v1/sandboxes", request_body, content_type=content_type)


@pytest.mark.parametrize("accept", ["text/html", "application/problem+json", "image/png", "x"])
def test_an_answer_is_json_whatever_is_accepted(api: Api, accept: str) -> None:
    assert api.get("/healthz", headers={"accept": accept}).body == {"status": "ok"}
    api.get("/healthz?format=xml")


def test_an_empty_body_lacks_every_required_member(api: Api) -> None:
    answer = api.post("/v1/sandboxes", raw=b"", expect=400)
    assert_problem(answer, "validation-failed")
    assert set(answer.codes) == {"/ownerUserId", "/registryId", "/repository", "/tag", "/spec"}


@pytest.mark.parametrize("raw", [b"null", b"[]", b'"text"', b"5", b"true"])
def test_a_body_that_is_not_an_object_is_refused(api: Api, raw: bytes) -> None:
    answer = api.post("/v1/sandboxes", raw=raw, expect=400)
    assert answer.codes[""] == "wrong-type"
    assert "NoneType" not in answer.body["errors"][0]["detail"]


@pytest.mark.parametrize("length", ["x", "-1", "1.5", "٣"])
def test_a_content_length_that_is_no_number_is_refused(api: Api, length: str) -> None:
    answer = api.get("/healthz", headers={"content-length": length}, expect=400)
    assert_problem(answer, "bad-request")


@pytest.mark.parametrize("length", ["1048577", "9" * 19, "9" * 5000])
def test_a_body_that_is_announced_too_large_is_a_413(api: Api, length: str) -> None:
    assert_problem(
        api.get("/healthz", headers={"content-length": length}, expect=413), "body-too-large"
    )


@pytest.mark.urls("tests.controlplane.broken_urls")
@pytest.mark.parametrize("path", ["/broken", "/bad-sql", "/bad-data"])
def test_a_fault_of_ours_is_a_500_that_tells_nothing(api: Api, path: str) -> None:
    answer = api.get(path, expect=500)
    assert_problem(answer, "internal-error")
    for secret in ("hunter2", "SELECT", "secret", "Traceback", "varying", "no_such_table"):
        assert secret not in answer.content.decode()


@pytest.mark.urls("tests.controlplane.broken_urls")
def test_djangos_own_404_keeps_its_text_to_itself(api: Api) -> None:
    answer = api.get("/gone", expect=404)
    assert_problem(answer, "not-found")
    assert "hunter2" not in answer.content.decode()


@pytest.fixture
def database_down(transactional_db: None) -> Iterator[None]:
    """Point the application at a port where no database listens."""
    port = connection.settings_dict["PORT"]
    connection.close()
    connection.settings_dict["PORT"] = "1"
    yield
    connection.close()
    connection.settings_dict["PORT"] = port


@pytest.mark.usefixtures("database_down")
def test_a_database_that_is_away_is_a_503(api: Api, request_body: dict[str, Any]) -> None:
    assert_problem(api.get("/v1/workspaces?ownerUserId=a", expect=503), "database-unavailable")
    assert_problem(api.get(f"/v1/workspaces/{MISSING}", expect=503), "database-unavailable")
    answer = api.post("/v1/sandboxes", request_body, headers={"idempotency-key": "k"}, expect=503)
    assert_problem(answer, "database-unavailable")
    assert "127.0.0.1" not in answer.content.decode()
    api.get("/healthz")


@pytest.mark.usefixtures("database_down")
def test_readiness_names_the_database_that_is_away(api: Api) -> None:
    answer = api.get("/readyz", expect=503)
    checks = {check["name"]: check for check in answer.body["checks"]}
    assert answer.body["status"] == "unavailable"
    assert not checks["database"]["ok"]
    assert checks["broker"]["ok"]
    assert checks["registry"]["ok"]


def test_a_host_that_is_not_allowed_is_a_400(api: Api, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["only.example"]
    for path in ("/admin/login/", "/healthz"):
        assert_problem(api.get(path, expect=400), "host-not-allowed")


def test_more_parameters_than_django_reads_are_a_400(api: Api) -> None:
    many = "&".join(f"a{index}=1" for index in range(1100))
    assert_problem(api.get(f"/v1/workspaces?{many}", expect=400), "bad-request")


def test_no_answer_names_more_than_500_faults(api: Api) -> None:
    body = {"spec": {"runtime": {"env": {f"a-{index}": 1 for index in range(5000)}}}}
    answer = api.post("/v1/sandboxes", raw=json.dumps(body).encode(), expect=400)
    assert len(answer.body["errors"]) <= 500
    nul = json.dumps({"spec": ["\x00"] * 5000}).encode()
    answer = api.post("/v1/sandboxes", raw=nul, expect=400)
    assert len(answer.body["errors"]) == 500
