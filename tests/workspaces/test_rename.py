"""Renaming workspaces."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conftest import Api
from tests.factories import OWNER
from workspaces.models import Workspace
from workspaces.services import create_workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def workspace() -> Workspace:
    """A workspace of the test's owner."""
    return create_workspace(owner_user_id=OWNER, name="Before")


def path(workspace: Workspace) -> str:
    return f"/v1/workspaces/{workspace.pk}/name"


def test_a_workspace_gets_another_name(api: Api, workspace: Workspace) -> None:
    body = api.patch(path(workspace), {"name": "After"}).body
    assert body["workspaceId"] == str(workspace.pk)
    assert body["name"] == "After"
    read = api.get(f"/v1/workspaces/{workspace.pk}").body
    assert (read["name"], read["updatedAt"]) == ("After", body["updatedAt"])
    assert read["updatedAt"] > read["createdAt"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("  a   b  ", "a b"),
        ("x" * 120, "x" * 120),
        ("Ünïcödé 🎉", "Ünïcödé 🎉"),
        ("a\u00a0\u3000b", "a b"),
        ("<b>&", "<b>&"),
        ("👩\u200d💻 \u0645\u06cc\u200c\u062e", "👩\u200d💻 \u0645\u06cc\u200c\u062e"),
    ],
)
def test_runs_of_blanks_count_as_one(api: Api, workspace: Workspace, given: str, kept: str) -> None:
    assert api.patch(path(workspace), {"name": given}).body["name"] == kept


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("x" * 121, "max-length"),
        ("a\nb", "control-character"),
        ("a\tb", "control-character"),
        ("a\x1b[31mb", "control-character"),
        ("a\u202eb", "control-character"),
        ("a\u200bb", "control-character"),
        ("\ufeffa", "control-character"),
        ("\u200d", "blank"),
        (5, "wrong-type"),
        (["a"], "wrong-type"),
        (None, "required"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(
    api: Api, workspace: Workspace, name: Any, code: str
) -> None:
    assert api.patch(path(workspace), {"name": name}, expect=400).codes == {"/name": code}
    workspace.refresh_from_db()
    assert workspace.name == "Before"


@pytest.mark.parametrize("member", ["ownerUserId", "userId"])
def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(
    api: Api, workspace: Workspace, member: str
) -> None:
    body = {"name": "After"}
    unknown = f"/v1/workspaces/{uuid.uuid4()}/name"
    answers = [
        api.patch(path(workspace), {**body, member: "usr_other"}, expect=404).body,
        api.patch(f"{path(workspace)}?{member}=usr_other", body, expect=404).body,
        api.patch(unknown, {**body, member: "usr_other"}, expect=404).body,
    ]
    for answer in answers:
        del answer["requestId"]
    assert answers[0] == answers[1] == answers[2]
    workspace.refresh_from_db()
    assert workspace.name == "Before"


def test_the_owner_may_be_named_in_body_and_query(api: Api, workspace: Workspace) -> None:
    api.patch(path(workspace), {"name": "A", "ownerUserId": OWNER})
    api.patch(f"{path(workspace)}?ownerUserId={OWNER}", {"name": "B", "userId": OWNER})
    answer = api.patch(f"{path(workspace)}?userId=b", {"name": "C", "userId": OWNER}, expect=400)
    assert answer.codes == {"/ownerUserId": "owner-ambiguous"}


def test_every_fault_is_told_at_once(api: Api, workspace: Workspace) -> None:
    answer = api.patch(f"{path(workspace)}?x=1", {"nam": "A", "ownerUserId": ""}, expect=400)
    assert answer.codes == {
        "x": "unknown-parameter",
        "/nam": "unknown-member",
        "/name": "required",
        "/ownerUserId": "blank",
    }
    assert api.patch(path(workspace), raw=b"[]", expect=400).codes == {"": "wrong-type"}
    assert api.patch(path(workspace), raw=b"{", expect=400).body["code"] == "malformed-json"
