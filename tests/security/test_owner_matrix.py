"""Every operation of the description, asked by somebody else than the owner: nothing happens."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from controlplane.http.identity import GUARDED, OPEN_PATHS
from tests.conformance import document
from tests.conftest import OWNER, Api
from tests.security.owned import (
    STRANGER,
    Place,
    call,
    contents,
    fill,
    require_identity,
    shapes,
)

pytestmark = pytest.mark.django_db

FOR_THE_GATEWAY = {"sshKeys.resolvePrincipal", "workspaces.getSshTarget"}
"""Its token is what they ask for."""
OF_THE_CALLER = {"workspaces.streamAll"}
"""It goes on for ever, with what is the caller's own: ``tests/runs/streaming`` reads it."""
OF_NOBODY = {"packages.resolve", "registries.get", "registries.ping", "registries.extensions"}
"""What they tell belongs to no owner."""

BODIES: dict[str, dict[str, Any]] = {
    "connectedAccounts.create": {"provider": "generic", "name": "B", "secret": "not-a-secret"},
    "profiles.replaceCredentialBindings": {"bindings": []},
    "runs.create": {"workspaceId": "{workspaceId}", "harnessId": "x", "mode": "interactive"},
    "runs.input": {"end": True},
    "runs.update": {"status": "cancelled"},
    "sandboxes.create": {
        "registryId": "default",
        "repository": "a",
        "tag": "b",
        "spec": {"harness": {"id": "shell"}},
        "workspaceId": "{workspaceId}",
    },
    "scm.importInstallation": {"externalInstallationId": "7"},
    "sshKeys.create": {"publicKey": "no key"},
    "workspaces.create": {
        "registryId": "default",
        "repository": "a",
        "tag": "b",
        "spec": {"harness": {"id": "shell"}},
        "credentials": {"profileId": "{profileId}"},
    },
    "workspaces.exec": {"command": ["true"]},
    "workspaces.rename": {"name": "Theirs"},
    "workspaces.update": {"ttlSeconds": 600},
    "workspaces.replaceEgress": {"policy": {"default": "allow"}},
    "files.makeDirectory": {"path": "a"},
    "ports.link": {"path": "/"},
    "files.move": {"fromPath": "a", "toPath": "b"},
}
"""What is sent, with ids of the owner put in; nothing where there is no body to send."""
QUERIES = {
    "runs.scrollback": "stream=stdout",
    "runs.export": "format=text",
    "registries.tags": "repository={repository}",
    "registries.manifest": "repository={repository}&reference=b",
    "packages.resolve": "query=rg",
    **{
        f"files.{name}": "path=a"
        for name in ("read", "write", "delete", "list", "stat", "pack", "unpack")
    },
}
NOT_ABSENT = {"connectedAccounts.create": 201, "scm.importInstallation": 403, "sshKeys.create": 400}
"""What names nothing of ours that another owner has; the provider's ids are not ours."""


Operation = tuple[str, str, str]


def operations() -> list[Operation]:
    """Return method, path and name of all that is for owners."""
    return [
        (method.upper(), path, operation["operationId"])
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if path.startswith(GUARDED) and path not in OPEN_PATHS
    ]


def sent(place: Place, name: str, path: str) -> tuple[str, dict[str, Any] | None]:
    """Return the path and the body of a sound request for what is at ``place``."""

    def put_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put_in(inner) for key, inner in value.items()}
        return place.path(value) if isinstance(value, str) else value

    query = f"?{QUERIES[name]}" if name in QUERIES else ""
    operation = next(
        operation
        for methods in document()["paths"].values()
        for operation in methods.values()
        if operation["operationId"] == name
    )
    takes_body = "application/json" in operation.get("requestBody", {}).get("content", {})
    if "renewals" in path:
        path = path.replace("{connectedAccountId}", "{codexAccountId}")
    return place.path(path + query), put_in(BODIES.get(name, {})) if takes_body else None


@pytest.fixture(autouse=True)
def _identity(settings: Settings) -> None:
    require_identity(settings)


@pytest.fixture
def place() -> Place:
    """What the owner has."""
    return fill()


FOREIGN = [
    each for each in operations() if each[2] not in FOR_THE_GATEWAY | OF_NOBODY | OF_THE_CALLER
]


def test_there_are_operations() -> None:
    assert len(FOREIGN) > 30
    assert set(BODIES) | set(QUERIES) <= {name for _, _, name in operations()}


@pytest.mark.parametrize(("method", "path", "name"), FOREIGN, ids=[each[2] for each in FOREIGN])
def test_what_is_anothers_is_as_absent_as_what_is_unknown(
    api: Api, place: Place, method: str, path: str, name: str
) -> None:
    before = contents()
    there, body = sent(place, name, path)
    with CaptureQueriesContext(connection) as of_foreign:
        foreign = call(api, method, there, body, caller=STRANGER)
    if name in NOT_ABSENT:
        assert foreign.status == NOT_ABSENT[name]
        if foreign.status >= 400:
            assert contents() == before
        return
    assert contents() == before
    if foreign.status == 200 and foreign.body.keys() <= {"items", "nextCursor"}:
        # A list of one's own: of the stranger's, not of the owner's.
        assert OWNER not in foreign.content.decode()
        assert not any(
            each in foreign.content.decode() for each in place.ids.values() if "-" in each
        )
        return
    assert foreign.status == 404, foreign.content
    nowhere, body = sent(place.unknown(), name, path)
    with CaptureQueriesContext(connection) as of_unknown:
        unknown = call(api, method, nowhere, body, caller=STRANGER)
    told = [{**each.body, "requestId": ""} for each in (foreign, unknown)]
    assert told[0] == told[1]
    assert shapes(of_foreign) == shapes(of_unknown)
    assert contents() == before


SAID = [each for each in operations() if each[2] not in FOR_THE_GATEWAY]


@pytest.mark.parametrize(("method", "path", "name"), SAID, ids=[each[2] for each in SAID])
@pytest.mark.parametrize("member", ["ownerUserId", "userId"])
def test_nobody_can_say_another_owner_than_himself(
    api: Api, place: Place, method: str, path: str, name: str, member: str
) -> None:
    before = contents()
    there, body = sent(place, name, path)
    join = "&" if "?" in there else "?"
    requests = [(f"{there}{join}{member}={OWNER}", body)]
    requests += [(there, {**body, member: OWNER})] if body is not None else []
    for asked, told in requests:
        with CaptureQueriesContext(connection) as queries:
            answer = call(api, method, asked, told, caller=STRANGER)
        assert (answer.status, answer.body["code"]) == (404, "owner-not-found")
        assert [each["sql"] for each in queries if "SAVEPOINT" not in each["sql"]] == []
    assert contents() == before


EVERY = operations()


@pytest.mark.parametrize(("method", "path", "name"), EVERY, ids=[each[2] for each in EVERY])
def test_nobody_is_answered_whom_no_proxy_names(
    api: Api, place: Place, settings: Settings, method: str, path: str, name: str
) -> None:
    there, body = sent(place, name, path)
    before = contents()
    missing = call(api, method, there, body)
    gateway = name in FOR_THE_GATEWAY
    assert (missing.status, missing.body["code"]) == (401, "caller-missing")
    settings.SVC_TRUSTED_PROXIES = ["192.0.2.0/24", "2001:db8::/32"]
    forged = call(api, method, there, body, caller=OWNER)
    assert (forged.status, forged.body["code"]) == (401, "caller-missing")
    wrong = call(api, method, there, body, x_svc_gateway_token="wrong")
    expected = "gateway-token-invalid" if gateway or name.startswith("runs.") else "caller-missing"
    assert wrong.status == 401
    assert wrong.body["code"] in {expected, "caller-missing"}
    if gateway:
        assert wrong.body["code"] == "gateway-token-invalid"
    assert contents() == before


BODY_OF_A_SANDBOX = BODIES["workspaces.create"]


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("/v1/runs", "POST", {"workspaceId": "{workspaceId}", "harnessId": "x", "prompt": "x"}),
        ("/v1/sandboxes", "POST", {**BODIES["sandboxes.create"], "relation": "resume"}),
        (
            "/v1/sandboxes",
            "POST",
            {
                **BODY_OF_A_SANDBOX,
                "credentials": {"generic": ["{connectedAccountId}"]},
            },
        ),
        (
            "/v1/workspaces",
            "POST",
            {
                **BODY_OF_A_SANDBOX,
                "credentials": {},
                "sourceSelection": {
                    "provider": "github",
                    "installationId": "{installationId}",
                    "installationRepositoryId": str(uuid.UUID(int=7)),
                },
            },
        ),
    ],
)
def test_ids_in_bodies_are_held_against_the_caller(
    api: Api, place: Place, path: str, method: str, body: dict[str, Any]
) -> None:
    def filled(where: Place) -> Any:
        def put_in(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: put_in(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [put_in(inner) for inner in value]
            return where.path(value) if isinstance(value, str) else value

        return put_in(body)

    before = contents()
    with CaptureQueriesContext(connection) as of_foreign:
        foreign = call(api, method, path, filled(place), caller=STRANGER)
    with CaptureQueriesContext(connection) as of_unknown:
        unknown = call(api, method, path, filled(place.unknown()), caller=STRANGER)
    assert (foreign.status, foreign.body["code"]) == (unknown.status, unknown.body["code"])
    assert foreign.status == 404
    assert shapes(of_foreign) == shapes(of_unknown)
    assert contents() == before
