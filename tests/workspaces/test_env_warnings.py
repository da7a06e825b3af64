"""A blueprint whose variables look like secrets is accepted with a warning that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from runs.agent.masking import masker
from tests.conftest import Api
from workspaces import env_warnings
from workspaces.models import SandboxRequest

GITHUB_TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "abcdef123456"),
        ("DB_PASSWORD", "hunter2"),
        ("my_secret", "x"),
        ("NPM_TOKEN", "//registry.example:_auth"),
        ("GREETING", f"hello {GITHUB_TOKEN}"),
        ("DATABASE_URL", "postgres://app:s3cret@db.example/app"),
    ],
)
def test_what_looks_like_a_secret_is_warned_about_without_its_value(name: str, value: str) -> None:
    (warning,) = env_warnings.env_warnings({name: value, "PLAIN": "text"})
    assert (warning["code"], warning["pointer"]) == ("secret-in-env", f"/spec/runtime/env/{name}")
    assert name in warning["detail"]
    assert value not in warning["detail"] or len(value) == 1
    assert "Connect a generic account" in warning["detail"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4096"),
        ("PASSWORD_FILE", "/run/secrets/password"),
        ("SECRET_PATH", "~/.config/app"),
        ("USE_TOKEN", "true"),
        ("API_KEY", ""),
        ("NODE_ENV", "production"),
        ("DATABASE_URL", "postgres://db.example/app"),
        ("EDITOR", "vim"),
    ],
)
def test_switches_numbers_and_paths_are_no_secrets(name: str, value: str) -> None:
    assert env_warnings.env_warnings({name: value}) == []


def test_the_names_are_those_that_the_agent_masks() -> None:
    assert env_warnings._SECRET_NAME == masker._SECRET_NAME


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
def test_both_endpoints_tell_it_and_repeat_it_under_the_same_key(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    runtime = request_body["spec"].setdefault("runtime", {})
    assert api.post(path, request_body, expect=202).body["warnings"] == []
    runtime["env"] = {"STRIPE_API_KEY": "live-4711-4711"}
    key = {"idempotency-key": "warned"}
    first = api.post(path, request_body, expect=202, headers=key)
    assert [warning["pointer"] for warning in first.body["warnings"]] == [
        "/spec/runtime/env/STRIPE_API_KEY"
    ]
    assert "4711" not in str(first.body["warnings"])
    assert api.post(path, request_body, expect=202, headers=key).body == first.body


@pytest.mark.django_db
def test_an_answer_that_was_remembered_before_there_were_warnings_is_repeated(
    api: Api, request_body: dict[str, Any]
) -> None:
    key = {"idempotency-key": "early"}
    first = api.post("/v1/sandboxes", request_body, expect=202, headers=key)
    remembered = SandboxRequest.objects.get()
    del remembered.answer["warnings"]
    remembered.save()
    assert api.post("/v1/sandboxes", request_body, expect=202, headers=key).body == first.body
