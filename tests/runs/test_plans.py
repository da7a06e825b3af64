"""Queries stay cheap as rows become many: what they read does not grow with the tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from builds.images import garbage
from controlplane import admin
from runs.models import Run
from runs.record.room import taken_by
from tests.conftest import Api
from tests.support.plans import rows_read, sequential_scans, statements
from tests.support.volume import BUSY, Filled, Volume, fill

pytestmark = pytest.mark.django_db
SMALL = Volume(workspaces=2_000, runs=6_000, events=30_000, long_run=10_000, owners=50)
PAGE = 50
MOST = 5 * (PAGE + 1)
"""Rows that a statement of one page may look at: its own, and what belongs to each."""


@pytest.fixture
def filled() -> Filled:
    """A moderate number of rows."""
    return fill(SMALL)


def too_much(work: Callable[[], object], most: int = MOST) -> dict[str, object]:
    """Return the statements that read a growing table from end to end, or more than ``most`` rows.

    Sequential scans are made dear, which they are not by themselves in tables of this size: where
    there is still one, no index serves.
    """
    found: dict[str, object] = {}
    sent = statements(work)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    for statement in sent:
        plan = statement.plan(analyze=True)
        scans, read = sequential_scans(plan), rows_read(plan)
        if scans or read > most:
            found[statement.sql] = scans or read
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = on")
    return found


def test_what_a_page_reads_does_not_grow_with_the_lists(api: Api, filled: Filled) -> None:
    runs, workspaces = f"/v1/runs?ownerUserId={BUSY}", f"/v1/workspaces?ownerUserId={BUSY}"
    for path in (
        runs,
        f"{runs}&workspaceId={filled.workspace_id}",
        f"{runs}&status=cancelled",
        f"{runs}&status=completed",
        f"{runs}&status=queued",
        f"{runs}&mode=boot",
        f"{runs}&mode=one-shot",
        f"{runs}&mode=one-shot&status=cancelled",
        f"{runs}&mode=interactive&status=completed",
        workspaces,
        f"{workspaces}&status=failed",
        f"{workspaces}&status=stopped",
        f"{workspaces}&status=queued",
        f"{workspaces}&status=deleted",
        f"/v1/workspaces/{filled.workspace_id}/attempts?ownerUserId={BUSY}",
        f"/v1/workspaces/{filled.workspace_id}/events?ownerUserId={BUSY}",
    ):
        answer = api.get(f"{path}&limit={PAGE}")
        assert too_much(partial(api.get, f"{path}&limit={PAGE}")) == {}, path
        if "nextCursor" in answer.body:
            cursor = answer.body["nextCursor"]
            following = f"{path}&limit={PAGE}&cursor={cursor}"
            assert too_much(partial(api.get, following)) == {}, following


def test_workspaces_of_one_status_are_listed_whole_and_in_order(api: Api, filled: Filled) -> None:
    path = f"/v1/workspaces?ownerUserId={BUSY}"
    for status, expected in (("failed", 19), ("stopped", 981), ("deleted", 0)):
        ids: list[str] = []
        cursor = ""
        while True:
            body = api.get(f"{path}&status={status}&limit=100{cursor}").body
            assert {item["status"] for item in body["items"]} <= {status}
            ids += [item["workspaceId"] for item in body["items"]]
            if "nextCursor" not in body:
                break
            cursor = f"&cursor={body['nextCursor']}"
        assert ids == sorted(set(ids), reverse=True)
        assert len(ids) == expected, status


def test_a_piece_of_a_long_stream_reads_that_piece(api: Api, filled: Filled) -> None:
    run = filled.long_run
    middle = filled.long_run_bytes // 2 + 17
    path = f"/v1/runs/{run.pk}/scrollback?processId=1&stream=stdout&fromOffset={middle}"
    piece = api.get(f"{path}&limitBytes=6400").body
    assert piece["byteCount"] == 6400
    assert piece["fromOffset"] == str(middle)
    assert too_much(lambda: api.get(f"{path}&limitBytes=6400")) == {}


def test_the_size_of_an_owners_records_and_unneeded_images_are_found_by_indexes(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert too_much(lambda: taken_by(BUSY), most=PAGE) == {}
    monkeypatch.setattr(garbage, "IMAGES_LOOKED_AT", PAGE)
    looked_at = statements(lambda: garbage.long_unneeded("", keep=timedelta(days=7)))
    assert len(looked_at) == 2
    # Whoever needs the images is looked for by an index; in tables of this size the planner may
    # begin at either end of it, so rows are not counted.
    work = lambda: garbage.long_unneeded("", keep=timedelta(days=7))  # noqa: E731
    assert too_much(work, most=10**9) == {}


def test_a_search_of_the_admin_looks_through_the_newest_rows_only(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "LOOKED_THROUGH", 100)
    monkeypatch.setattr(admin, "MOST_LISTED", 200)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))

    def look(query: str) -> None:
        assert client.get(f"/admin/runs/run/{query}").status_code == 200

    assert too_much(lambda: look(""), most=201) == {}
    assert too_much(lambda: look("?q=wholly-unheard-of"), most=201) == {}
    assert too_much(lambda: look("?q=shell"), most=201) == {}
    assert too_much(lambda: look("?q=usr_3"), most=201) == {}

    def found(query: str) -> int:
        return int(client.get(f"/admin/runs/run/?q={query}").context["cl"].result_count)

    owned = Run.objects.filter(owner_user_id="usr_3").count()
    newest = [run.owner_user_id for run in Run.objects.order_by("-pk")[:100]]
    assert found("usr_3") == owned > 100  # a whole value: all that there are
    assert found("usr_1") == Run.objects.filter(owner_user_id="usr_1").count()
    assert found("sr_1") == sum("sr_1" in owner for owner in newest)
    assert found("hell") == 100
    assert found("") == 200
