"""Syncs that run at once, and what happens while one is under way."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Semaphore

import pytest
from django.db import connections

from scm import app_connection as connection
from scm.app_connection import ASKED_AT_ONCE
from scm.models import InstallationRepository, SourceRepository
from scm.services import database_now, sync_installation
from tests.conftest import OWNER, Api
from tests.scm.fake_provider import Asked, FakeProvider, FakeRepository
from tests.scm.installed import PATH, import_, imported, listed, names, repositories, say, sync
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_slow_sync_does_not_bring_back_what_a_quicker_one_saw_go(
    api: Api, provider: FakeProvider
) -> None:
    installed = provider.install("app", "tool")
    installation = imported(api)
    held, go_on = Event(), Event()
    slow = itertools.count()

    def hold_the_first(asked: Asked) -> None:
        if "/installation/repositories" in asked.path and next(slow) == 0:
            held.set()
            assert go_on.wait(LONG_WAIT)

    provider.after = hold_the_first

    def run() -> None:
        try:
            sync_installation(installation.pk, owner_user_id=OWNER)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        slow_sync = pool.submit(run)
        assert held.wait(LONG_WAIT)  # its answer has both repositories, and is on its way
        installed.repositories.pop()
        try:
            assert sync(api, installation).body["syncedRepositoryCount"] == 1
        finally:
            go_on.set()
        slow_sync.result(LONG_WAIT)
    assert names(repositories(api, installation)) == ["app"]


def test_a_slow_provider_takes_no_more_than_some_of_the_apis_threads(
    api: Api, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PLACE_SECONDS", 0.0)
    provider.install("app")
    installation = imported(api)
    asked_for, go_on = Semaphore(0), Event()

    def hold(asked: Asked) -> None:
        if asked.path.endswith("/app/installations/7"):
            asked_for.release()
            assert go_on.wait(LONG_WAIT)

    provider.after = hold

    def run(_: int) -> int:
        try:
            return sync(Api(), installation).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        slow = [pool.submit(run, number) for number in range(ASKED_AT_ONCE)]
        try:
            for _ in slow:
                assert asked_for.acquire(timeout=LONG_WAIT)
            before = len(provider.requests)
            refused = sync(api, installation, expect=503)
            assert import_(api, expect=503).body["code"] == "scm-busy"
            assert len(provider.requests) == before
        finally:
            go_on.set()
        assert [each.result(LONG_WAIT) for each in slow] == [200] * ASKED_AT_ONCE
    assert (refused.body["code"], refused.headers["Retry-After"]) == ("scm-busy", "5")
    sync(api, installation)


def test_a_suspension_that_arrives_during_a_sync_stays(api: Api, provider: FakeProvider) -> None:
    provider.install("app")
    installation = imported(api)

    def arrive(asked: Asked) -> None:
        if "/installation/repositories" in asked.path:
            say(provider, "suspended", database_now())
            connections.close_all()

    provider.after = arrive
    sync(api, installation, expect=403)
    installation.refresh_from_db()
    assert installation.status == "suspended"
    assert listed(api) == []


def test_many_syncs_at_once_end_with_what_the_provider_has(
    api: Api, provider: FakeProvider
) -> None:
    provider.install(*(f"r{number}" for number in range(40)))
    provider.install(*(f"s{number}" for number in range(40)), id=8)
    both = [imported(api, 7), imported(api, 8)]
    # Both show the same repositories for a while, so that they are inserted from two sides.
    shared = [FakeRepository(10_000 + number, f"x{number}") for number in range(60)]
    provider.installations[7].repositories = [*shared]
    provider.installations[8].repositories = [*reversed(shared)]
    together = Barrier(8)

    def run(number: int) -> int:
        try:
            together.wait()
            path = f"{PATH}/{both[number % 2].pk}/sync?userId={OWNER}"
            return Api().request("POST", path).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [200] * 8
    for installation in both:
        assert InstallationRepository.objects.present().filter(
            installation=installation
        ).count() == len(shared)
    assert SourceRepository.objects.filter(external_id__gte=10_000).count() == len(shared)
