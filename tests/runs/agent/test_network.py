"""Connections, from the kernel's real tables."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from runs.agent.observe import network, socket_tables
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
            tables = socket_tables.rows_of(socket_tables.read_tables())
            for rows in (tables, socket_tables.connections() or []):
                assert port not in {network._port(row.key[2]) for row in network._of_others(rows)}


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_kernel_answers_what_its_files_say(family: int, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port)), server.accept()[0]:
            asked = [*(socket_tables.connections() or []), *socket_tables.listening()]
            read = socket_tables.rows_of(socket_tables.read_tables())
            assert sorted(_of(port, asked)) == sorted(_of(port, read))
            assert len(_of(port, asked)) == 3


def test_what_listens_is_found_in_the_files_too_where_the_kernel_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asked = _of(port, socket_tables.listening())
        monkeypatch.setattr(socket_tables, "_SOCK_DIAG", 31)  # no such protocol
        assert socket_tables.connections() is None
        assert _of(port, socket_tables.listening()) == asked != []


def _of(port: int, rows: Iterable[socket_tables.Row]) -> list[socket_tables.Row]:
    return [row for row in rows if port in (network._port(row.key[1]), network._port(row.key[2]))]


@pytest.mark.parametrize("asks", [True, False])
def test_a_connection_is_told_when_it_is_seen_and_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    if not asks:
        monkeypatch.setattr(socket_tables, "_SOCK_DIAG", 31)  # no such protocol
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
