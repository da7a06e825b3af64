"""However many reach for the pool at once, each container is one run's."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from tests.support.waiting import LONG_WAIT
from tests.workspaces.warm_pool.pools import Engine, ask, filled, keep, start_of
from workspaces.models import WarmMember

CLAIMS = 50


@pytest.mark.django_db(transaction=True)
def test_fifty_claims_on_a_pool_of_three_have_three_and_nobody_waits() -> None:
    engine = Engine()
    pool = filled(engine, 3)
    waiting = keep(pool)
    ready = threading.Barrier(10)

    def claim(number: int) -> uuid.UUID | None:
        try:
            if number < 10:
                ready.wait(LONG_WAIT)
            claimed = pool.claim(start_of(), ask)
            return None if claimed is None else claimed.member_id
        finally:
            connections.close_all()

    with ThreadPoolExecutor(10) as threads:
        claims = list(threads.map(claim, range(CLAIMS)))
    assert sorted(filter(None, claims)) == waiting
    runs = WarmMember.objects.values_list("run_id", flat=True)
    assert len(set(runs)) == 3
    assert None not in runs


@pytest.mark.django_db(transaction=True)
def test_what_is_retired_and_what_is_claimed_at_once_is_never_both() -> None:
    engine = Engine()
    pool = filled(engine, 3)

    def claim(_: int) -> object:
        try:
            return pool.claim(start_of(), ask)
        finally:
            connections.close_all()

    def retire(member: WarmMember) -> bool:
        try:
            return WarmMember.objects.give_up(member)
        finally:
            connections.close_all()

    rows = list(WarmMember.objects.all())
    with ThreadPoolExecutor(6) as threads:
        claims = [threads.submit(claim, number) for number in range(3)]
        retired = [threads.submit(retire, row) for row in rows]
        claimed = sum(each.result() is not None for each in claims)
        gone = sum(each.result() for each in retired)
    assert claimed + gone <= 3
    assert WarmMember.objects.filter(status="claimed").count() == claimed
    assert WarmMember.objects.count() == 3 - gone


@pytest.mark.django_db(transaction=True)
def test_a_claim_whose_answer_was_lost_is_made_again_and_is_the_same() -> None:
    pool = filled(Engine(), 2)
    request = start_of()
    first = pool.claim(request, ask)
    assert first is not None
    assert pool.claim(request, ask) == first
    assert WarmMember.objects.filter(status="claimed").count() == 1
