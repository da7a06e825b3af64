"""Calls of sandboxes and workspaces are answered as described.

Streams that go on until something happens are left out: each call would wait for that. They have
tests of their own in ``tests/runs/streaming``.
"""

from __future__ import annotations

import pytest

from tests.security.cases.calls import Call, Calls, description

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
AREAS = ("sandboxes", "workspaces")
STREAMS = r"workspaces\.stream(All)?$"


@description(*AREAS).exclude(method="DELETE").exclude(operation_id_regex=STREAMS).parametrize()
def test_every_call_is_answered_as_described(case: Call, calls: Calls) -> None:
    calls.check(case)


@description(*AREAS, method="DELETE").parametrize()
def test_every_deletion_is_answered_as_described(case: Call, calls: Calls) -> None:
    calls.check(case)
