"""Cursors, and pages of any rows."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from controlplane.database.ids import uuid7
from controlplane.errors import ValidationFailed
from controlplane.http.pagination import decode_cursor, encode_cursor, page
from workspaces.models import Workspace


@given(st.uuids())
def test_a_cursor_leads_back_to_its_position(position: uuid.UUID) -> None:
    cursor = encode_cursor(position)
    assert decode_cursor(cursor) == position
    assert cursor.replace("-", "").replace("_", "").isalnum()


@hypothesis_settings(derandomize=True, max_examples=300)
@given(st.text(max_size=200))
def test_any_other_text_is_refused_in_order(text: str) -> None:
    try:
        decode_cursor(text)
    except ValidationFailed as refusal:
        assert [fault.parameter for fault in refusal.errors] == ["cursor"]


@pytest.mark.django_db
def test_the_last_page_has_no_cursor() -> None:
    ids = sorted((uuid7() for _ in range(5)), reverse=True)
    for pk in ids:
        Workspace.objects.create(id=pk, owner_user_id="a", name="W")
    seen: list[uuid.UUID] = []
    cursor = None
    for expected in (2, 2, 1):
        answer = page(
            Workspace.objects.all(),
            limit=2,
            cursor=cursor,
            present=lambda rows: [row.pk for row in rows],
        )
        assert len(answer["items"]) == expected
        seen += answer["items"]
        cursor = answer.get("nextCursor")
    assert cursor is None
    assert seen == ids
