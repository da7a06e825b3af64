"""Attacks on every string and object of the blueprint, and arbitrary JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance import document
from tests.conftest import Api
from tests.workspaces.attacks import (
    IDS,
    INJECTIONS,
    OBJECTS,
    PATH,
    STRINGS,
    WHOLE_SPEC,
    Place,
    assert_nothing_written,
    at,
    objects,
    pointer,
    put,
    refused,
)
from tests.workspaces.packages.package_index import write_index
from workspaces.models import BuildJob, Sandbox, Workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def whole_body(request_body: dict[str, Any]) -> dict[str, Any]:
    """A request that gives every member of the blueprint."""
    write_index("debian", {"ripgrep": ["13.0"]})
    return {**request_body, "spec": WHOLE_SPEC}


def test_the_whole_blueprint_is_accepted(api: Api, whole_body: dict[str, Any]) -> None:
    api.post(PATH, whole_body)


def test_the_whole_blueprint_gives_every_string_there_is() -> None:
    """A member that is added to the blueprint has to be added to the attacks."""

    def names(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for inner in schema.values():
                yield from names(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from names(inner)

    given = {step for place in objects(WHOLE_SPEC) for step in at(WHOLE_SPEC, place)}
    known = set(names(document()["components"]["schemas"]["Blueprint"]))
    without_strings = {"applyDotfiles", "dotfilesBootstrap", "sudo", "credentialRefs"}
    need_an_account = {"credential", "header"}  # of a rule of the egress policy
    without_custom = {"rights"}  # of a harness of ours, which the whole blueprint has not
    credentials = {"credentials", "profileId", "claude", "codex", "github", "generic"}
    assert known - given == without_strings | without_custom | credentials | need_an_account


@pytest.mark.parametrize("place", STRINGS, ids=IDS)
def test_a_control_character_in_any_string_of_the_blueprint_is_refused(
    api: Api, whole_body: dict[str, Any], place: Place
) -> None:
    text = at(WHOLE_SPEC, place)
    for character in ("\u0000", "\u0007", "\u001b", "\u007f", "\u009b", "\u2028", "\r"):
        body = put(whole_body, ("spec", *place), f"{text[:1]}{character}{text[1:]}")
        answer = refused(api, body)
        assert f"/spec{pointer(place)}" in answer.codes


@pytest.mark.parametrize("place", STRINGS, ids=IDS)
def test_a_lone_surrogate_in_any_string_of_the_blueprint_is_refused(
    api: Api, whole_body: dict[str, Any], place: Place
) -> None:
    body = put(whole_body, ("spec", *place), "a\ud800b")
    answer = refused(api, raw=json.dumps(body).encode())
    assert answer.codes == {f"/spec{pointer(place)}": "invalid-character"}


@pytest.mark.parametrize("place", STRINGS, ids=IDS)
@pytest.mark.parametrize("value", [5, True, None, [], {}, 1.5, [["deep"]]], ids=repr)
def test_a_wrong_type_at_any_depth_is_refused_or_means_absent(
    api: Api, whole_body: dict[str, Any], place: Place, value: Any
) -> None:
    body = put(whole_body, ("spec", *place), value)
    answer = api.request("POST", PATH, body)
    if value is None and answer.status == 202:
        return
    assert answer.status == 400
    assert any(found.startswith(f"/spec{pointer(place)}") for found in answer.codes)
    assert_nothing_written()


@pytest.mark.parametrize("place", OBJECTS, ids=[pointer(place) or "/" for place in OBJECTS])
def test_an_unknown_member_of_any_object_is_refused_with_a_suggestion(
    api: Api, whole_body: dict[str, Any], place: Place
) -> None:
    near = next(iter(at(WHOLE_SPEC, place)))
    body = put(whole_body, ("spec", *place, f"{near}x"), 1)
    answer = refused(api, body)
    found = f"/spec{pointer(place)}/{near}x"
    assert answer.codes == {found: "unknown-member"}
    assert "Did you mean" in answer.body["errors"][0]["detail"]
    assert near in answer.body["errors"][0]["detail"]


@pytest.mark.parametrize(
    "place",
    [("spec", *place) for place in OBJECTS],
    ids=[pointer(place) or "/" for place in OBJECTS],
)
def test_an_auth_ref_from_a_client_is_refused_everywhere(
    api: Api, whole_body: dict[str, Any], place: Place
) -> None:
    answer = refused(api, put(whole_body, (*place, "authRef"), "/etc/passwd"))
    assert answer.codes == {f"{pointer(place)}/authRef": "auth-ref-refused"}


@pytest.mark.parametrize("text", INJECTIONS)
def test_text_that_injects_is_refused_or_kept_as_text(
    api: Api, whole_body: dict[str, Any], text: str
) -> None:
    started = 0
    for place in STRINGS:
        answer = api.request("POST", PATH, put(whole_body, ("spec", *place), text))
        if answer.status == 202:
            started += 1
            spec = api.get(answer.headers["location"]).body["spec"]
            assert at(spec, place) == text
        else:
            assert answer.status == 400
            assert any(found.startswith(f"/spec{pointer(place)}") for found in answer.codes)
        assert Sandbox.objects.count() == Workspace.objects.count() == started


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=10) | st.sampled_from(list(WHOLE_SPEC)), inner, max_size=4
        )
    ),
    max_leaves=12,
)
MEMBERS = [
    "ownerUserId", "userId", "registryId", "repository", "tag", "name", "spec", "workspaceId",
    "relation", "sourceSelection", "dotfilesSelection", "credentials",
]  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """Draw a sound body with arbitrary JSON somewhere in it, or arbitrary JSON."""
    body: dict[str, Any] = {
        "ownerUserId": "usr_fuzz",
        "registryId": "default",
        "repository": "fuzz/a",
        "tag": "latest",
        "spec": copy.deepcopy(WHOLE_SPEC),
    }
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(json_values)
    if kind == 1:
        body[draw(st.sampled_from(MEMBERS) | st.text(max_size=10))] = draw(json_values)
        return body
    every = [("spec", *place) for place in [*STRINGS, *OBJECTS[1:]]]
    return put(body, draw(st.sampled_from(every)), draw(json_values))


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=bodies(), key=st.none() | st.text(st.characters(codec="latin-1"), max_size=10))
def test_no_body_is_ever_our_fault(
    api: Api, whole_body: dict[str, Any], body: Any, key: str | None
) -> None:
    before = Workspace.objects.count(), Sandbox.objects.count(), BuildJob.objects.count()
    headers = {} if key is None else {"idempotency-key": key}
    answer = api.request("POST", PATH, raw=json.dumps(body).encode(), headers=headers)
    after = Workspace.objects.count(), Sandbox.objects.count(), BuildJob.objects.count()
    if answer.status == 202:
        api.get(answer.headers["location"])
    else:
        assert 400 <= answer.status < 500 or answer.body["code"] == "scm-app-unconfigured"
        assert after == before
