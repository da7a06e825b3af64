"""The description is generated, committed, complete and usable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator
from pytest_django.fixtures import Settings

from controlplane.http.error_tags import GROUPS
from controlplane.http.openapi import PROBLEM_EXAMPLE
from controlplane.http.openapi import document as generate
from tests.accounts.connected import KEY
from tests.conformance import assert_described, document
from tests.conftest import Api
from workspaces.blueprint import Blueprint

SPECIFIED = {
    "/": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/v1/system/setup-state": {"get"},
    "/v1/workspaces": {"get", "post"},
    "/v1/workspaces/{workspaceId}": {"get"},
    "/v1/workspaces/{workspaceId}/name": {"patch"},
    "/v1/workspaces/{workspaceId}/attempts": {"get"},
    "/v1/workspaces/{workspaceId}/events": {"get"},
    "/v1/sandboxes": {"post"},
    "/v1/sandboxes/{sandboxId}": {"get"},
    "/v1/workspaces/{workspaceId}/ssh-target": {"get"},
    "/v1/ssh-keys": {"get", "post"},
    "/v1/ssh-keys/{sshKeyId}": {"delete"},
    "/v1/ssh-keys/resolve-principal": {"post"},
    "/v1/runs": {"get", "post"},
    "/v1/runs/{runId}": {"get", "patch"},
    "/v1/runs/{runId}/timeline": {"get"},
    "/v1/runs/{runId}/events/{sequence}": {"get"},
    "/v1/runs/{runId}/scrollback": {"get"},
    "/v1/runs/{runId}/loss": {"get"},
    "/v1/runs/{runId}/changes": {"get"},
    "/v1/runs/{runId}/export": {"get"},
}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_description_is_what_the_code_generates() -> None:
    assert json.loads(generate()) == document(), (
        "run: manage.py spectacular --format openapi-json --file openapi.json"
    )


def test_the_description_is_served_as_json() -> None:
    answer = Client().get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document()
    assert document()["info"]["version"] == "0.4.0"
    assert document()["openapi"].startswith("3.1")


def test_every_specified_operation_is_described() -> None:
    paths = document()["paths"]
    described = {path: set(paths[path]) & wanted for path, wanted in SPECIFIED.items()}
    assert described == SPECIFIED


def test_every_operation_has_texts_an_id_and_the_problem_body() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations():
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert operation["tags"], (path, method)
        assert all(response["description"] for response in operation["responses"].values())
        problem = operation["responses"]["default"]["content"]["application/problem+json"]
        assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_400_and_409_are_declared_wherever_they_are_answered() -> None:
    problem = {"$ref": "#/components/schemas/Problem"}
    for path, method, operation in operations():
        declared = operation["responses"]
        told = {"400", "409"} & declared.keys()
        assert "400" in told, (path, method)
        assert ("409" in told) == ("409" in operation["description"]), (path, method)
        for status in told:
            media = declared[status]["content"]["application/problem+json"]
            assert media["schema"] == problem, (path, method, status)


def test_every_group_of_paths_has_its_name_in_the_classes_of_errors() -> None:
    paths = [path for path, _, _ in operations() if path.startswith("/v1/")]
    assert {path.split("/")[2] for path in paths} == GROUPS.keys()


def test_components_have_names_that_a_person_would_give() -> None:
    for name in document()["components"]["schemas"]:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", name), name
        assert not re.search(r"RequestRequest|Enum|Patched|Serializer", name), name


def test_every_object_of_ours_says_what_it_is() -> None:
    for name, schema in document()["components"]["schemas"].items():
        if schema.get("type") == "object":
            assert schema.get("description"), name


def test_the_examples_fit_their_schemas() -> None:
    components = document()["components"]
    for path, method, operation in operations():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in body.get("examples", {}).values():
            schema = {**body["schema"], "components": components}
            faults = list(Draft202012Validator(schema).iter_errors(example["value"]))
            assert not faults, (path, method, faults)
            if "spec" in example["value"]:
                Blueprint.parse(example["value"]["spec"])
    problem = {**components["schemas"]["Problem"], "components": components}
    Draft202012Validator(problem).validate(PROBLEM_EXAMPLE)


@pytest.mark.django_db
def test_the_described_examples_are_accepted(api: Api) -> None:
    content = document()["paths"]["/v1/sandboxes"]["post"]["requestBody"]["content"]
    for example in content["application/json"]["examples"].values():
        api.post("/v1/sandboxes", example["value"])


def bodies() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Give method, path and body of each operation that reads members, and their schema.

    The path has ids that nothing has.
    """
    for path, method, operation in operations():
        body = operation.get("requestBody", {})
        name = body.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref")
        if name and method != "delete" and "resolve-principal" not in path:
            path = path.replace("{port}", "8000")
            path = re.sub(r"\{\w+\}", "019c0f5e-2b1a-7c44-9d2f-6f1f3a0b5c77", path)
            schema = document()["components"]["schemas"][name.rpartition("/")[2]]
            yield method.upper(), path, body, schema


@pytest.mark.django_db
@pytest.mark.parametrize("body", [None, {}], ids=["none", "empty"])
def test_owners_and_bodies_are_called_required_where_they_are(
    api: Api, settings: Settings, body: dict[str, Any] | None
) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    required = set()
    for method, path, described, schema in bodies():
        answer = api.request(method, path, body)
        refused = answer.codes if answer.status == 400 else {}
        assert "ownerUserId" in schema["properties"], path
        owner = "ownerUserId" in schema.get("required", ())
        assert owner == (refused.get("/ownerUserId") == "required"), (path, answer)
        assert described.get("required", False) == bool(refused), (path, answer)
        required |= {owner, described.get("required", False)}
    assert required == {True, False}


def test_content_is_called_required() -> None:
    for path in ("/v1/workspaces/{workspaceId}/files", "/v1/workspaces/{workspaceId}/archive"):
        assert document()["paths"][path]["put"]["requestBody"]["required"] is True


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("createdAt", "2026-01-01"),
        ("createdAt", "2026-13-01T00:00:00.000Z"),
        ("createdAt", "2026-01-01T00:00:00.000"),
        ("createdAt", "2026-01-01 00:00:00.000Z"),
        ("sshKeyId", "019c0f5e2b1a7c449d2f6f1f3a0b5c77"),
        ("sshKeyId", "default"),
    ],
)
def test_an_answer_with_a_malformed_instant_or_id_is_not_as_described(
    member: str, value: str
) -> None:
    shown = {
        "sshKeyId": "019c0f5e-2b1a-7c44-9d2f-6f1f3a0b5c77",
        "ownerUserId": "usr_test",
        "name": "a key",
        "algorithm": "ssh-ed25519",
        "fingerprint": "SHA256:x",
        "createdAt": "2026-01-01T00:00:00.000Z",
    }
    place = ("POST", "/v1/ssh-keys", 201, "application/json")
    assert_described(*place, shown)
    with pytest.raises(AssertionError, match=member):
        assert_described(*place, {**shown, member: value})


@pytest.mark.django_db  # closing an answer looks at the connection that another test has left
def test_the_docs_load_nothing_from_elsewhere() -> None:
    page = Client().get("/docs")
    html = page.content.decode()
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert links
    assert all(link.startswith("/") and not link.startswith("//") for link in links), links
    assert not re.search(r"<script>", html), "inline scripts are forbidden by our own policy"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "http" not in policy
    for link in links:
        answer = Client().get(link)
        content = b"".join(answer) if answer.streaming else answer.content
        assert answer.status_code == 200, link
        assert content, link
        answer.close()


def parts(node: object) -> Iterator[dict[str, Any]]:
    """Yield every object of the description."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from parts(value)
    elif isinstance(node, list):
        for value in node:
            yield from parts(value)


def test_generators_of_clients_find_nothing_that_they_cannot_process() -> None:
    described = document()
    assert described["security"] == []
    assert [server["url"] for server in described["servers"]] == ["/"]
    assert described["info"]["license"]["identifier"] == "Apache-2.0"
    schemas = list(parts(described["components"]["schemas"]))
    arrays = [schema for schema in schemas if schema.get("type") == "array"]
    assert len(arrays) > 20
    assert [schema for schema in arrays if "items" not in schema] == []
    alternatives = [schema for schema in schemas if "oneOf" in schema or "anyOf" in schema]
    assert len(alternatives) > 5
    assert [one for one in alternatives if isinstance(one.get("default"), dict)] == []


def test_no_pattern_ends_the_text_that_generators_put_it_into() -> None:
    """That of openapi-generator for Python writes ``r"…"`` and leaves a quote in it as it is."""
    values = [part["pattern"] for part in parts(document()) if "pattern" in part]
    patterns = [value for value in values if isinstance(value, str)]
    assert len(patterns) > 20
    assert [pattern for pattern in patterns if re.search(r"[\"'`]", pattern)] == []
