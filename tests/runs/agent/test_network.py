"""Connections, from the kernel's real tables."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from runs.agent.observe import network
from runs.agent.record.frames import Kind
from tests.runs.agent.booted import eventually
from tests.runs.agent.observed import Watching


def test_addresses_are_read_as_the_kernel_prints_them() -> None:
    shown = "0A00000A:1F90"
    assert network._text(network._address(shown)) == "10.0.0.10"
    assert network._port(shown) == 8080
    mapped = "0000000000000000FFFF00000A00000A:0050"
    assert network._text(network._address(mapped)) == "10.0.0.10"


def test_the_loopback_is_left_out() -> None:
    for shown in ("0100007F:0050", "00000000000000000000000001000000:0050"):
        assert network._is_local(shown)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            ports = {network._port(row.key[2]) for row in network._rows(network.read_tables())}
            assert port not in ports


def test_a_connection_is_told_when_it_is_seen_and_when_it_is_gone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        address = route.getsockname()[0]
    watching = Watching(tmp_path, tmp_path, network=True, processes=True)
    watching.observers.before_start()
    watching.observers.leader_started(os.getpid(), 1)
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port)):
            eventually(lambda: _told_after_a_tick(watching, port) == ["open"])
    watching.observers.finish()
    assert _told(watching, port) == ["open", "closed"]
    metas = [meta for meta in watching.metas(Kind.NETWORK_SOURCE_OBSERVED) if meta["port"] == port]
    assert {(meta["peer"], meta["process"]) for meta in metas} == {(address, 1)}
    watching.close()


def _told(watching: Watching, port: int) -> list[str]:
    metas = watching.metas(Kind.NETWORK_SOURCE_OBSERVED)
    return [meta["state"] for meta in metas if meta["port"] == port]


def _told_after_a_tick(watching: Watching, port: int) -> list[str]:
    watching.observers.tick()
    return _told(watching, port)
