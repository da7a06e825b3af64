"""The pool follows what is started, and no failure or crash leaves it with what nobody removes."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings

from controlplane.work.stopping import StopEvent
from tests.workspaces.warm_pool.pools import IMAGE, Engine, ask, filled, keep, pool_of, start_of
from workspaces.models import Engine as KnownEngine
from workspaces.models import WarmMember, WarmPlan
from workspaces.warm_pool.pool_check import PoolFailsError, check

pytestmark = pytest.mark.django_db
OTHER = f"registry.invalid/tests/other@sha256:{'2' * 64}"


def aged(by: timedelta) -> None:
    """Make all demand older."""
    WarmPlan.objects.update(demand_at=F("demand_at") - by)


# ---------------------------------------------------------------- how many wait


def test_without_a_size_nothing_waits_and_only_one_question_is_asked() -> None:
    engine = Engine()
    pool = pool_of(engine, size=0)
    pool.note_start(start_of())
    with CaptureQueriesContext(connection) as captured:
        assert keep(pool) == []
    assert len(captured) == 2  # one is the test's
    assert engine.tried == 0
    assert not WarmPlan.objects.exists()


def test_as_many_wait_as_were_started_of_late_up_to_the_size() -> None:
    engine = Engine()
    pool = pool_of(engine, size=3)
    assert keep(pool) == []
    for expected in (1, 2, 3, 3):
        pool.note_start(start_of())
        assert len(keep(pool)) == expected
    assert set(engine.containers) == set(keep(pool))


@pytest.mark.parametrize(("size", "others", "ones"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (9, 3, 2)])
def test_the_size_is_that_of_all_plans_and_each_has_one_before_another_has_two(
    size: int, others: int, ones: int
) -> None:
    engine = Engine()
    pool = pool_of(engine, size=size)
    for image in (IMAGE, IMAGE, OTHER, OTHER, OTHER):
        pool.note_start(start_of(image))
    keep(pool)
    images = [row.plan.shape["image"] for row in WarmMember.objects.select_related("plan")]
    assert Counter(images) == Counter({OTHER: others, IMAGE: ones})


def test_limits_of_memory_limit_the_number() -> None:
    engine = Engine()
    pool = pool_of(engine, size=3, memory_mb=600)
    for _ in range(3):
        pool.note_start(start_of())
    assert len(keep(pool)) == 2


def test_what_is_not_started_any_more_is_retired_and_forgotten() -> None:
    engine = Engine()
    pool = filled(engine)
    aged(timedelta(minutes=10))
    assert len(keep(pool)) == 2
    aged(timedelta(hours=2))
    assert keep(pool) == []
    assert engine.containers == {}
    keep(pool)
    assert not WarmPlan.objects.exists()


@pytest.mark.parametrize("days", [1, 10, 30])
def test_what_an_operator_keeps_waits_without_any_start(days: int) -> None:
    engine = Engine()
    pool = filled(engine, 2)
    WarmPlan.objects.update(keep=1)
    aged(timedelta(days=days))
    assert len(keep(pool)) == 1
    assert len(engine.containers) == 1


def test_a_plan_that_was_not_started_for_long_keeps_no_other_from_being_filled() -> None:
    engine = Engine()
    pool = filled(engine, 1)
    runs_for_long = start_of()
    claimed = pool.claim(runs_for_long, ask)
    assert claimed is not None
    engine.take(claimed.member_id, runs_for_long.run_id)
    aged(timedelta(days=10))
    pool.note_start(start_of(OTHER))
    keep(pool)
    ready = WarmMember.objects.get(status="ready")
    assert ready.plan.shape["image"] == OTHER
    # A start of it counts again.
    pool.note_start(start_of())
    assert WarmPlan.objects.get(shape__image=IMAGE).demand == 1


def test_a_pool_that_was_switched_off_is_emptied() -> None:
    engine = Engine()
    filled(engine)
    assert keep(pool_of(engine, size=0)) == []
    assert engine.containers == {}


def test_an_engine_that_is_drained_is_emptied_and_filled_again_afterwards() -> None:
    engine = Engine()
    pool = filled(engine, 2)
    row = KnownEngine.objects.create(name="local", engine_id=engine.engine_id())
    assert len(keep(pool)) == 2
    for state in ("draining", "gone"):
        KnownEngine.objects.filter(pk=row.pk).update(state=state)
        assert keep(pool) == []
        assert engine.containers == {}
    KnownEngine.objects.filter(pk=row.pk).update(state="active")
    assert len(keep(pool)) == 2


def test_members_of_another_release_are_retired(settings: Settings) -> None:
    engine = Engine()
    filled(engine, 2)
    settings.SVC_VERSION = "99.0.0"
    newer = pool_of(engine, size=2)
    newer.note_start(start_of())
    (member,) = keep(newer)
    assert list(engine.containers) == [member]
    assert newer.claim(start_of(), ask) is not None


@pytest.mark.parametrize(
    "change", [{"volumes": (object(),)}, {"restart": True}, {"egress": lambda bridge: None}]
)
def test_what_has_something_of_its_own_from_the_start_is_not_served(
    change: dict[str, Any],
) -> None:
    engine = Engine()
    pool = filled(engine, 1)
    request = start_of(**change)
    assert pool.claim(request, ask) is None
    pool.note_start(request)
    assert len(keep(pool)) == 1
    assert WarmPlan.objects.count() == 1


# ---------------------------------------------------------------- failures and crashes


def test_failures_are_waited_out_longer_each_time_and_told_and_forgotten(
    settings: Settings,
) -> None:
    settings.WORKSPACE_WARM_POOL_SIZE = 1
    engine = Engine(broken=True)
    pool = pool_of(engine, size=1)
    pool.note_start(start_of())
    for tried, pause in enumerate((5, 10, 20), start=1):
        before = timezone.now()
        keep(pool)
        retry_at = WarmPlan.objects.values_list("retry_at", flat=True).get()
        assert retry_at is not None
        assert before <= retry_at - timedelta(seconds=pause) <= timezone.now()
        WarmPlan.objects.update(retry_at=Now() + timedelta(hours=1))
        keep(pool)
        assert engine.tried == tried
        WarmPlan.objects.update(retry_at=None)
    with pytest.raises(PoolFailsError, match=r"3 times in a row.*no room"):
        check()
    engine.broken = False
    assert len(keep(pool)) == 1
    assert check() == "Containers that wait for a start: 1."
    assert not WarmMember.objects.exclude(status="ready").exists()


def test_failures_of_a_plan_that_serves_nobody_any_more_are_forgotten(settings: Settings) -> None:
    settings.WORKSPACE_WARM_POOL_SIZE = 1
    engine = Engine()
    pool = filled(engine, 1)
    request = start_of()
    claimed = pool.claim(request, ask)
    assert claimed is not None
    engine.take(claimed.member_id, request.run_id)
    retry_at = timezone.now() + timedelta(hours=1)
    WarmPlan.objects.update(failures=3, retry_at=retry_at, error="no room")
    keep(pool)
    with pytest.raises(PoolFailsError):
        check()
    aged(timedelta(days=1))
    keep(pool)
    assert check() == "Containers that wait for a start: 0."
    assert WarmMember.objects.filter(run_id=request.run_id).exists()


def test_one_that_ended_while_it_waited_is_replaced() -> None:
    engine = Engine()
    pool = filled(engine, 2)
    ended, stays = keep(pool)
    engine.end(ended)
    again = keep(pool)
    assert stays in again
    assert ended not in again
    assert set(engine.containers) == set(again)


def test_all_that_an_engine_lost_when_it_was_started_again_is_replaced() -> None:
    engine = Engine()
    pool = filled(engine)
    before = keep(pool)
    engine.containers.clear()
    after = keep(pool)
    assert len(after) == 3
    assert not set(before) & set(after)


def test_what_a_worker_left_that_died_while_starting_one_is_removed() -> None:
    engine = Engine()
    pool = filled(engine, 1)
    (ready,) = keep(pool)
    plan = WarmPlan.objects.get()
    half = WarmMember.objects.create(plan=plan, engine_id=engine.engine_id())
    engine.launch(start_of(run_id=half.pk), cancelled=StopEvent())
    assert keep(pool) == [ready]
    assert list(engine.containers) == [ready]


def test_one_that_was_given_up_while_it_started_is_removed_by_who_started_it() -> None:
    engine = Engine()
    pool = pool_of(engine, size=1)
    pool.note_start(start_of())
    engine.at_launch = lambda request: WarmMember.objects.all().delete()
    assert keep(pool) == []
    assert engine.containers == {}


def test_the_row_of_what_was_taken_is_kept_until_its_container_is_gone() -> None:
    engine = Engine()
    pool = filled(engine, 1)
    request = start_of()
    claimed = pool.claim(request, ask)
    assert claimed is not None
    keep(pool)
    assert WarmMember.objects.get(run_id=request.run_id).pk == claimed.member_id
    engine.take(claimed.member_id, request.run_id)
    keep(pool)
    assert WarmMember.objects.filter(run_id=request.run_id).exists()
    del engine.containers[request.run_id]
    keep(pool)
    assert not WarmMember.objects.filter(run_id=request.run_id).exists()


def test_what_a_run_claimed_and_did_not_take_is_removed_once_it_has_another_container() -> None:
    engine = Engine()
    pool = filled(engine, 1)
    request = start_of()
    claimed = pool.claim(request, ask)
    assert claimed is not None
    engine.launch(request, cancelled=StopEvent())
    aged(timedelta(days=1))
    keep(pool)
    assert set(engine.containers) == {request.run_id}
    assert not WarmMember.objects.exists()


def test_members_of_another_engine_are_left_alone() -> None:
    other = Engine(name="other")
    filled(other, 1)
    engine = Engine()
    pool = pool_of(engine, size=1)
    pool.note_start(start_of())
    keep(pool)
    assert len(other.containers) == len(engine.containers) == 1
    claimed = pool.claim(start_of(), ask)
    assert claimed is not None
    assert claimed.engine_id == "engine"


@pytest.mark.parametrize("state", ["draining", "gone"])
def test_nothing_waits_on_an_engine_that_takes_nothing_new(state: str) -> None:
    engine = Engine()
    known = KnownEngine.objects.create(name="other-machine", engine_id=engine.engine_id())
    pool = filled(engine, 2)
    KnownEngine.objects.update(state=state)
    assert keep(pool) == []
    assert engine.containers == {}
    # Declared gone, and added again under another name.
    KnownEngine.objects.filter(pk=known.pk).update(state="gone")
    KnownEngine.objects.create(name="the-same", engine_id=engine.engine_id())
    assert len(keep(pool)) == 2


# ---------------------------------------------------------------- claims


def test_another_worker_that_launches_the_run_gets_the_same_one() -> None:
    pool = filled(Engine(), 2)
    request = start_of()
    first = pool.claim(request, ask)
    again = pool.claim(replace(request, attempt_count=2), ask)
    assert first == again
    assert first is not None
    assert pool.claim(start_of(), ask) != first


def test_the_one_that_waits_longest_is_claimed_first_and_an_empty_pool_gives_none() -> None:
    pool = filled(Engine(), 2)
    waiting = keep(pool)
    claims = [pool.claim(start_of(), ask) for _ in range(3)]
    assert [claim and claim.member_id for claim in claims] == [*waiting, None]


def test_an_owner_s_image_of_the_same_digest_has_the_same_pool(settings: Settings) -> None:
    pool = filled(Engine(), 1)
    assert pool.claim(start_of(OTHER), ask) is None
    assert pool.claim(start_of(), ask) is not None


def test_a_member_is_claimed_by_a_run_or_by_nobody() -> None:
    filled(Engine(), 1)
    with pytest.raises(IntegrityError), transaction.atomic():
        WarmMember.objects.update(status="claimed")
    with pytest.raises(IntegrityError), transaction.atomic():
        WarmMember.objects.update(run_id=uuid.uuid4())
