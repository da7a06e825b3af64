"""Listing workspaces: keyset pages, filters, limits, cursors, and how many queries a page takes."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.http.pagination import encode_cursor
from tests.conftest import Api
from tests.factories import OWNER, make_job, make_worker
from tests.support.engines import make_engine
from workspaces import services as workspaces
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db

PATH = f"/v1/workspaces?ownerUserId={OWNER}"


def pages(api: Api, path: str, *, between: Any = lambda: None) -> list[list[dict[str, Any]]]:
    """Read every page, calling ``between`` after each one."""
    found, cursor = [], ""
    for _ in range(100):
        body = api.get(f"{path}{cursor}").body
        found.append(body["items"])
        between()
        if "nextCursor" not in body:
            return found
        cursor = f"&cursor={body['nextCursor']}"
    raise AssertionError("the list does not end")


def test_an_owner_without_workspaces_has_an_empty_list(api: Api) -> None:
    assert api.get(PATH).body == {"items": []}


def test_the_newest_workspace_comes_first(api: Api) -> None:
    jobs = [make_job() for _ in range(3)]
    shown = [item["workspaceId"] for item in api.get(PATH).body["items"]]
    assert shown == [str(job.attempt.workspace_id) for job in reversed(jobs)]


def test_only_the_owners_workspaces_are_listed(api: Api) -> None:
    workspaces.create_workspace(owner_user_id="usr_other", name="Other")
    mine = make_job()
    items = api.get(PATH).body["items"]
    assert [item["workspaceId"] for item in items] == [str(mine.attempt.workspace_id)]
    assert len(api.get("/v1/workspaces?userId=usr_other").body["items"]) == 1


def test_a_workspace_without_a_sandbox_is_listed(api: Api) -> None:
    workspaces.create_workspace(owner_user_id=OWNER, name="Bare")
    (item,) = api.get(PATH).body["items"]
    assert item["status"] == "queued"
    assert "sandboxId" not in item
    assert api.get(f"/v1/workspaces/{item['workspaceId']}").body["name"] == "Bare"


@pytest.mark.parametrize(("rows", "limit"), [(7, 3), (6, 3), (1, 1), (5, 100), (0, 1)])
def test_every_workspace_is_read_exactly_once(api: Api, rows: int, limit: int) -> None:
    ids = [str(workspaces.create_workspace(owner_user_id=OWNER, name="W").pk) for _ in range(rows)]
    found = pages(api, f"{PATH}&limit={limit}")
    assert [item["workspaceId"] for page in found for item in page] == ids[::-1]
    assert all(len(page) == limit for page in found[:-1])
    assert len(found[-1]) <= limit


def test_workspaces_that_are_added_meanwhile_move_nothing(api: Api) -> None:
    ids = [str(workspaces.create_workspace(owner_user_id=OWNER, name="W").pk) for _ in range(7)]
    found = pages(
        api,
        f"{PATH}&limit=2",
        between=lambda: workspaces.create_workspace(owner_user_id=OWNER, name="New"),
    )
    assert [item["workspaceId"] for page in found for item in page] == ids[::-1]


def test_a_cursor_whose_workspace_is_gone_still_leads_on(api: Api) -> None:
    rows = [workspaces.create_workspace(owner_user_id=OWNER, name="W") for _ in range(3)]
    cursor = api.get(f"{PATH}&limit=2").body["nextCursor"]
    Workspace.objects.filter(pk=rows[1].pk).delete()
    items = api.get(f"{PATH}&limit=2&cursor={cursor}").body["items"]
    assert [item["workspaceId"] for item in items] == [str(rows[0].pk)]


def test_a_cursor_does_not_lead_to_another_owners_rows(api: Api) -> None:
    workspaces.create_workspace(owner_user_id="usr_other", name="Other")
    for _ in range(2):
        workspaces.create_workspace(owner_user_id=OWNER, name="W")
    cursor = api.get(f"{PATH}&limit=1").body["nextCursor"]
    assert len(api.get(f"{PATH}&cursor={cursor}").body["items"]) == 1


def raw_cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "é",
        "====",
        "a" * 500,
        "' OR 1=1 --",
        raw_cursor([]),
        raw_cursor({}),
        raw_cursor("x"),
        raw_cursor([1]),
        raw_cursor([None]),
        raw_cursor([["x"]]),
        raw_cursor(["x"]),
        raw_cursor([str(uuid.UUID(int=10)), "x"]),
        raw_cursor(["\x00"]),
        raw_cursor([True]),
        base64.urlsafe_b64encode(b"[" * 300).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        encode_cursor(5),
        "%00",
    ],
)
def test_a_forged_cursor_is_a_400(api: Api, cursor: str) -> None:
    make_job()
    given = cursor if cursor.startswith("%") else quote(cursor)
    answer = api.get(f"{PATH}&cursor={given}", expect=400)
    assert set(answer.codes) == {"cursor"}


def test_a_cursor_that_is_too_long_or_empty_is_a_400(api: Api) -> None:
    assert api.get(f"{PATH}&cursor={'a' * 501}", expect=400).codes == {"cursor": "max-length"}
    assert api.get(f"{PATH}&cursor=", expect=400).codes == {"cursor": "blank"}


@pytest.mark.parametrize(
    "limit",
    ["5x", "1e2", "0", "101", "", "-1", "+5", "1.9", "0x10", " 5", "\u0665", "9" * 4000, "null"],
)
def test_a_limit_that_is_no_number_in_range_is_a_400(api: Api, limit: str) -> None:
    answer = api.get(f"{PATH}&limit={quote(limit)}", expect=400)
    assert set(answer.codes) == {"limit"}
    assert len(answer.content) < 1000


@pytest.mark.parametrize("limit", ["1", "25", "100"])
def test_a_limit_in_range_is_taken(api: Api, limit: str) -> None:
    api.get(f"{PATH}&limit={limit}")


def test_twenty_five_workspaces_are_shown_unless_told(api: Api) -> None:
    for _ in range(26):
        workspaces.create_workspace(owner_user_id=OWNER, name="W")
    body = api.get(PATH).body
    assert len(body["items"]) == 25
    assert body["nextCursor"]


def test_the_status_filter_finds_every_match_and_nothing_else(api: Api) -> None:
    failed = []
    for number in range(12):
        job = make_job()
        if number % 3 == 0:
            fail_unclaimed_job(job, code="x", message="It failed.")
            failed.append(str(job.attempt.workspace_id))
    found = pages(api, f"{PATH}&status=failed&limit=2")
    assert [item["workspaceId"] for page in found for item in page] == failed[::-1]
    assert all(item["status"] == "failed" for page in found for item in page)
    assert len(api.get(f"{PATH}&status=queued").body["items"]) == 8
    assert api.get(f"{PATH}&status=ready").body["items"] == []


@pytest.mark.parametrize("status", ["", "done", "FAILED", "failed,queued", "a" * 5000])
def test_an_unknown_status_is_a_400(api: Api, status: str) -> None:
    answer = api.get(f"{PATH}&status={status}", expect=400)
    assert answer.codes == {"status": "invalid-choice"}


def test_every_fault_of_the_query_is_told_at_once(api: Api) -> None:
    answer = api.get("/v1/workspaces?limit=0&cursr=x&status=y&status=z", expect=400)
    assert answer.codes == {
        "ownerUserId": "required",
        "limit": "min-value",
        "cursr": "unknown-parameter",
        "status": "repeated-parameter",
    }


def test_an_owner_is_required_and_may_be_given_twice_alike(api: Api) -> None:
    assert api.get("/v1/workspaces", expect=400).codes == {"ownerUserId": "required"}
    api.get("/v1/workspaces?ownerUserId=a&userId=a")
    answer = api.get("/v1/workspaces?ownerUserId=a&userId=b", expect=400)
    assert answer.codes == {"ownerUserId": "owner-ambiguous"}


def test_a_page_takes_as_many_queries_with_25_workspaces_as_with_one(api: Api) -> None:
    for name in ("first", "second"):
        make_engine(name)
        make_worker(f"worker-{name}", engine=name)
    make_job(engine_name="first")
    with CaptureQueriesContext(
        connection,
    ) as one:
        api.get(PATH)
    for number in range(24):
        make_job(engine_name="second" if number % 2 else "first")
    with CaptureQueriesContext(connection) as many:
        items = api.get(PATH).body["items"]
    assert len(items) == 25
    assert [item["reason"]["message"].rpartition(", ")[2] for item in items[:2]] == [
        "11 jobs ahead of it.",
        "12 jobs ahead of it.",
    ]
    assert len(many) == len(one)
    assert len(one) <= 8
