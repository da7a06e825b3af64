"""A proxy that is cut off from its database lets nothing pass, and says why."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection, connections, transaction

from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import EGRESS, SPEC
from tests.workspaces.egress.loopback import loopback, names_of_this_machine, parsed
from workspaces.blueprint import Egress
from workspaces.egress import known_networks
from workspaces.egress.agreed_policy import egress_of
from workspaces.egress.decided.journal import Journal
from workspaces.egress.host_policy import Policy
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.open_networks import Network, Revoked


@contextmanager
def silent_database() -> Iterator[None]:
    """Have no question about networks answered."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE workspaces_egressnetwork")
            holds.set()
            done.wait(LONG_WAIT)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(LONG_WAIT)
    try:
        yield
    finally:
        done.set()
        holder.join()


async def until_cut_off(network: Network, is_cut_off: bool) -> None:
    async with asyncio.timeout(LONG_WAIT):
        while network.is_cut_off != is_cut_off:
            await asyncio.sleep(0.01)


@pytest.mark.django_db(transaction=True)
def test_nothing_passes_while_the_database_is_silent_and_all_that_did_when_it_is_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_networks, "LOOK_SECONDS", 0.01)
    attempt = ready_attempt(spec=SPEC)
    register = egress_of(attempt, Egress.model_validate(EGRESS))
    assert register is not None
    register("lo")
    heard: list[float] = []
    networks = KnownNetworks("lo", journal, lambda: heard.append(time.monotonic()))

    async def connected(network: Network, opened: asyncio.Event) -> None:
        with network.while_allowed(lambda _: True):
            opened.set()
            await asyncio.Event().wait()

    async def played() -> None:
        with ThreadPoolExecutor(1) as one:
            asyncio.get_running_loop().set_default_executor(one)
            network = await networks.whose("127.0.0.1")
            assert network is not None
            opened = asyncio.Event()
            client = asyncio.create_task(connected(network, opened))
            await opened.wait()
            following = asyncio.create_task(networks.follow())
            async with asyncio.timeout(LONG_WAIT):
                while not heard:
                    await asyncio.sleep(0.01)
            with silent_database():
                since = time.monotonic()
                assert not network.is_cut_off
                monkeypatch.setattr(known_networks, "UNHEARD_SECONDS", 0.0)
                await until_cut_off(network, True)
                with pytest.raises(Revoked):
                    await client
                with pytest.raises(Revoked), network.while_allowed(lambda _: True):
                    pass
                monkeypatch.setattr(known_networks, "UNHEARD_SECONDS", time.monotonic() - since)
            await until_cut_off(network, False)
            monkeypatch.setattr(known_networks, "UNHEARD_SECONDS", LONG_WAIT)
            await until_cut_off(network, False)
            with network.while_allowed(lambda _: True):
                pass
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.to_thread(connections.close_all)

    asyncio.run(asyncio.wait_for(played(), LONG_WAIT))


def test_a_client_is_told_why_nothing_passes_and_what_is_open_is_closed(tmp_path: Path) -> None:
    async def played(host: str) -> None:
        def policy(port: int) -> Policy:
            return parsed([{"hosts": [host], "ports": [port], "paths": ["/*"]}], {})

        async with loopback(tmp_path, [host], policy) as place:
            head = f"GET {{}} HTTP/1.1\nHost: {host}:{place.port}"
            assert b"welcome" in await place.say(host, head.format("/a"))
            holding = asyncio.create_task(place.say(host, head.format("/hold")))
            await place.upstream.holding.wait()
            place.network.cut_off(True)
            assert b"welcome" not in await holding
            said = await place.say(host, head.format("/b"))
            assert b" 403 " in said
            assert b"hears nothing from its database" in said
            assert len(place.upstream.heard) == 2
            assert {each.rule for each in place.decisions if not each.allowed} == {"cut-off"}
            place.network.cut_off(False)
            assert b"welcome" in await place.say(host, head.format("/c"))

    with names_of_this_machine(1) as hosts:
        asyncio.run(asyncio.wait_for(played(hosts[0]), LONG_WAIT))
