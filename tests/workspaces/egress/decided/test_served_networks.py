"""A proxy that is told that a record ends closes what is open, stores what it decided, says so."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from uuid import UUID

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
    losses,
    network_of,
    recorded,
)
from workspaces.blueprint import Egress
from workspaces.egress import known_networks
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.decided.journal import Journal
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.open_networks import Network, Revoked
from workspaces.models import Attempt, EgressNetwork

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
    (told,) = recorded(run)
    assert (told["connections"], told["bytesSent"]) == (1, 5), "also what it had sent by then"
    assert network_of(attempt).settled_at is not None
    assert losses(run) == []


def test_a_network_that_becomes_known_while_it_is_asked_what_ends_is_ended(
    attempt: Attempt, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = KnownNetworks("lo", journal)
    ending = known_networks._ending

    async def played() -> None:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            network = await networks.whose("127.0.0.1")
            assert network is not None
            known, networks._known = networks._known, {}

            def asked(journal_id: str) -> list[tuple[UUID, str]] | None:
                networks._known = known
                return ending(journal_id)

            monkeypatch.setattr(known_networks, "_ending", asked)
            await asyncio.to_thread(EgressNetwork.objects.end, attempt.pk)
            await networks.look()
            assert network.ended
            networks._settling.stop()
            await asyncio.to_thread(connections.close_all)

    asyncio.run(asyncio.wait_for(played(), LONG_WAIT))


def test_what_is_open_in_a_network_that_is_gone_is_waited_for(
    attempt: Attempt, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = KnownNetworks("lo", journal)

    async def played() -> None:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            network = await networks.whose("127.0.0.1")
            assert network is not None
            monkeypatch.setattr(known_networks, "address_of", lambda _: "")
            opened = asyncio.Event()

            async def connected() -> None:
                with network.while_allowed(lambda _: True):
                    opened.set()
                    await asyncio.Event().wait()

            client = asyncio.create_task(connected())
            await opened.wait()
            assert await networks.whose("127.0.0.1") is None
            assert not networks._known
            await asyncio.to_thread(EgressNetwork.objects.end, attempt.pk)
            await networks.look()
            assert await asyncio.to_thread(_settled_at, attempt) is None
            with pytest.raises(Revoked):
                await client
            while await asyncio.to_thread(_settled_at, attempt) is None:
                await networks.look()
            await asyncio.to_thread(connections.close_all)

    asyncio.run(asyncio.wait_for(played(), LONG_WAIT))


def _settled_at(attempt: Attempt) -> datetime | None:
    return network_of(attempt).settled_at
