"""Calls of sandboxes and workspaces are answered as described."""

from __future__ import annotations

import pytest

from tests.security.cases.calls import Call, Calls, description

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
AREAS = ("sandboxes", "workspaces")


@description(*AREAS).exclude(method="DELETE").parametrize()
def test_every_call_is_answered_as_described(case: Call, calls: Calls) -> None:
    calls.check(case)


@description(*AREAS, method="DELETE").parametrize()
def test_every_deletion_is_answered_as_described(case: Call, calls: Calls) -> None:
    calls.check(case)
