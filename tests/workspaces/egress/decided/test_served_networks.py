"""A proxy that is told that a record ends closes what is open, stores what it decided, says so."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from runs.models import Run
from runs.record import egress_endings
from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import (
    EGRESS,
    SPEC,
    decision,
    hosts,
    losses,
    network_of,
)
from workspaces.blueprint import Egress
from workspaces.egress import known_networks
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.decided.journal import Journal
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.open_networks import Network, Revoked
from workspaces.models import Attempt

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """The attempt whose network is this machine's loopback."""
    monkeypatch.setattr(known_networks, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(known_networks, "UNKNOWN_SECONDS", 0.0)
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", LONG_WAIT)
    attempt = ready_attempt(spec=SPEC)
    register = egress_of(attempt, Egress.model_validate(EGRESS))
    assert register is not None
    register("lo")
    return attempt


def test_an_open_connection_ends_and_is_recorded_before_its_network_is_settled(
    attempt: Attempt, journal: Journal
) -> None:
    run = Run.objects.get(pk=attempt.run_id)
    networks = KnownNetworks("lo", journal)
    revoked: list[bool] = []

    async def connected(network: Network, opened: asyncio.Event) -> None:
        try:
            with network.while_allowed(lambda _: True):
                journal.add(decision(attempt.pk))
                opened.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    journal.add(decision(attempt.pk, connections=0, sent=5))
        except Revoked:
            revoked.append(True)

    def ended() -> None:
        try:
            egress_endings.settle(run)
        finally:
            connections.close_all()

    async def played() -> None:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            network = await networks.whose("127.0.0.1")
            assert network is not None
            opened = asyncio.Event()
            client = asyncio.create_task(connected(network, opened))
            await opened.wait()
            following = asyncio.create_task(networks.follow())
            with ThreadPoolExecutor(1) as another:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(loop.run_in_executor(another, ended), LONG_WAIT)
            await client
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            with pytest.raises(Revoked), network.while_allowed(lambda _: True):
                pass
            assert await KnownNetworks("lo", journal).whose("127.0.0.1") is None
            await asyncio.to_thread(connections.close_all)

    asyncio.run(asyncio.wait_for(played(), LONG_WAIT))
    assert revoked == [True]
    assert hosts(run) == [("a.test", 1)]
    assert network_of(attempt).settled_at is not None
    assert losses(run) == []
