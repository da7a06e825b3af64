"""Channels of a session that lead to TCP servers of the workspace."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from runs.agent.record.frames import Kind
from runs.agent.session import forwards
from runs.agent.session.channel import INITIAL_WINDOW, FromClient, ToClient
from tests.runs.agent.booted import Workspace, eventually
from tests.runs.agent.connected import PTY, Session
from tests.runs.agent.recorded import Runs, listener, no_more_descriptors

Opener = Callable[..., Session]


@pytest.fixture
def connect(workspace: Workspace) -> Iterator[Opener]:
    """Opens sessions and closes what a test left open."""
    opened: list[Session] = []
    runs = Runs(workspace)

    def open_session(**members: Any) -> Session:
        made = Session(runs, **members)
        opened.append(made)
        return made

    yield open_session
    for made in opened:
        made.end()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A TCP server that has not accepted anything yet."""
    with listener() as made:
        yield made


def port_of(server: socket.socket) -> int:
    """Where it listens."""
    port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST.", "127.1.2.3"])
def test_bytes_go_both_ways_and_each_direction_ends_by_itself(connect: Opener, host: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - all of 127/8 is asked
        session = connect()
        forward = session.forward(port_of(server), host)
        peer, _ = server.accept()
        with peer:
            forward.write(b"question")
            forward.send(FromClient.EOF)
            assert peer.makefile("rb").read() == b"question"
            assert not forward.is_over
            peer.sendall(b"answer")
            forward.until_shown(b"answer")
    forward.until(ToClient.EOF)
    assert forward.until(ToClient.EXIT) == {"code": 0, "signal": None, "reason": "ended"}
    record = session.record()
    where = {"channel": 1, "host": host, "port": port_of_event(record)}
    assert record.metas(Kind.FORWARD_OPENED) == [where]
    counted = {"sentBytes": 8, "receivedBytes": 6, "reason": "ended"}
    assert record.metas(Kind.FORWARD_CLOSED) == [{**where, **counted}]
    assert not [event for event in record.events if b"question" in event.body]
    assert (record.seal["reason"], record.seal["exit"]) == ("ended", None)


def test_without_a_record_bytes_go_both_ways_and_the_shell_beside_them_goes_on(
    connect: Opener, server: socket.socket
) -> None:
    session = connect(recorded=False)
    shell = session.open("shell", pty=PTY)
    shell.until(ToClient.OPENED)
    forward = session.forward(port_of(server))
    peer, _ = server.accept()
    with peer:
        forward.write(b"question")
        forward.send(FromClient.EOF)
        assert peer.makefile("rb").read() == b"question"
        peer.sendall(b"answer")
        forward.until_shown(b"answer")
    assert forward.until(ToClient.EXIT)["reason"] == "ended"
    shell.write(b"exit 3\r")
    assert shell.until(ToClient.EXIT)["code"] == 3


def port_of_event(record: Any) -> int:
    """The port that the record tells of."""
    (meta,) = record.metas(Kind.FORWARD_OPENED)
    assert meta["port"] > 0
    return int(meta["port"])


def test_a_server_may_end_its_direction_first(connect: Opener, server: socket.socket) -> None:
    forward = connect().forward(port_of(server))
    peer, _ = server.accept()
    with peer:
        peer.sendall(b"greeting")
        peer.shutdown(socket.SHUT_WR)
        forward.until(ToClient.EOF)
        assert forward.output() == b"greeting"
        forward.write(b"late")
        forward.send(FromClient.EOF)
        assert peer.makefile("rb").read() == b"late"
    assert forward.until(ToClient.EXIT)["reason"] == "ended"


def test_much_goes_both_ways_at_once(connect: Opener, server: socket.socket) -> None:
    session = connect()
    forward = session.forward(port_of(server))
    peer, _ = server.accept()
    content = os.urandom(5 * INITIAL_WINDOW)

    def echo() -> None:
        with peer:
            while data := peer.recv(65536):
                peer.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    forward.write(content)
    forward.send(FromClient.EOF)
    forward.until(ToClient.EXIT)
    thread.join()
    assert forward.output() == content


def test_a_server_that_does_not_read_is_sent_no_more_than_the_window(
    connect: Opener, server: socket.socket
) -> None:
    session = connect()
    forward = session.forward(port_of(server))
    peer, _ = server.accept()
    forward.write(bytes(INITIAL_WINDOW))
    assert session.command("true").until(ToClient.EXIT)["code"] == 0
    forward.send(FromClient.CLOSE)
    assert forward.until(ToClient.EXIT)["reason"] == "client"
    peer.close()


def test_a_client_without_a_window_keeps_the_server_waiting(
    connect: Opener, server: socket.socket
) -> None:
    session = connect()
    forward = session.forward(port_of(server))
    forward.grants = False
    peer, _ = server.accept()
    peer.setblocking(False)
    sent = _send_until_full(peer)
    while len(forward.output()) < min(sent, INITIAL_WINDOW):
        assert session.receive()
        sent += _send_until_full(peer)
    assert session.command("true").until(ToClient.EXIT)["code"] == 0
    assert len(forward.output()) == INITIAL_WINDOW
    peer.close()
    forward.grants = True
    forward.grant(1 << 30)
    forward.until(ToClient.EOF)
    assert len(forward.output()) == sent


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 1), ("localhost", 1), ("::1", 1), ("no.such.name.invalid", 80)],
)
def test_where_nobody_listens_the_channel_is_refused(connect: Opener, host: str, port: int) -> None:
    session = connect()
    refused = session.open("forward", host=host, port=port).until(ToClient.REFUSED)
    assert refused["code"] == "connect-failed"
    assert f"{host}:{port}: " in refused["message"]
    if host == "localhost":
        assert "refused" in refused["message"]
    assert session.command("true").until(ToClient.EXIT)["code"] == 0
    assert not session.record().of(Kind.FORWARD_OPENED)


def test_a_name_that_cannot_be_looked_up_now_is_refused_and_ends_nothing_else(
    connect: Opener,
) -> None:
    session = connect()
    copy = session.command("cat")
    with no_more_descriptors(session.process.pid):
        refused = session.open("forward", host="no.such.name.invalid", port=80)
        told = refused.until(ToClient.REFUSED)
    assert told["code"] == "connect-failed"
    assert "no.such.name.invalid:80: its address cannot be looked up" in told["message"]
    copy.write(b"still here")
    copy.send(FromClient.EOF)
    assert copy.until(ToClient.EXIT)["code"] == 0
    assert copy.output() == b"still here"
    assert session.record().seal["reason"] == "ended"


def test_a_lookup_without_room_for_a_process_leaves_no_descriptor_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(BlockingIOError):
        forwards._Lookup("a.name")
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_lookup_that_takes_long_holds_nothing_of_others_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child, go = tmp_path / "child", tmp_path / "go"

    def slow(*_: object, **__: object) -> NoReturn:
        child.write_text(str(os.getpid()))
        while not go.exists():
            time.sleep(0.01)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    reading, writing = os.pipe()
    lookup = forwards._Lookup("a.name")
    os.close(writing)
    assert os.read(reading, 1) == b""
    eventually(lambda: child.exists() and child.read_text())
    assert not lookup.read()
    go.touch()
    os.waitpid(int(child.read_text()), 0)
    assert lookup.read()
    assert lookup.addresses == []
    lookup.close()
    os.close(reading)


@pytest.mark.parametrize(
    "request_",
    [{"host": "", "port": 1}, {"host": "a"}, {"host": "a", "port": 70000}, {"host": 1, "port": 1}],
)
def test_what_is_no_address_is_a_bad_request(connect: Opener, request_: Any) -> None:
    session = connect()
    assert session.open("forward", **request_).until(ToClient.REFUSED)["code"] == "bad-request"
    assert session.command("true").until(ToClient.EXIT)["code"] == 0


def test_a_connection_that_is_reset_ends_its_channel_and_no_other(
    connect: Opener, server: socket.socket
) -> None:
    session = connect()
    copy = session.command("cat")
    forward = session.forward(port_of(server))
    peer, _ = server.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert forward.until(ToClient.EXIT)["reason"] == "reset"
    copy.send(FromClient.EOF)
    assert copy.until(ToClient.EXIT)["code"] == 0


def test_a_client_that_is_gone_closes_its_forwards(connect: Opener, server: socket.socket) -> None:
    session = connect()
    session.forward(port_of(server))
    peer, _ = server.accept()
    record = session.record()
    assert peer.recv(1) == b""
    peer.close()
    (closed,) = record.metas(Kind.FORWARD_CLOSED)
    assert closed["reason"] == "client"
    assert record.seal["reason"] == "ended"


def test_a_stop_closes_what_is_open(connect: Opener, server: socket.socket) -> None:
    session = connect()
    forward = session.forward(port_of(server))
    peer, _ = server.accept()
    assert session.runs.stop(session.run_id) == 0
    assert forward.until(ToClient.EXIT)["reason"] == "stop"
    assert peer.recv(1) == b""
    peer.close()
    eventually(lambda: session.runs.is_sealed(session.run_id))
    assert session.record().seal["reason"] == "stopped"


def _send_until_full(peer: socket.socket) -> int:
    sent = 0
    try:
        while True:
            sent += peer.send(bytes(65536))
    except BlockingIOError:
        return sent
