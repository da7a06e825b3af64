"""Workspaces that take their time with their files keep nobody else waiting."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from controlplane.errors import BadGateway, RequestTimeout
from controlplane.serving.lanes import MOST_WAITING
from tests.runs.agent.booted import eventually
from tests.security.test_slow_clients import connect, ended
from tests.stack.api_process import ApiProcess, api_process
from tests.support.waiting import LONG_WAIT
from tests.workspaces.boxes import Box
from workspaces.files import call as calls
from workspaces.files.call import FileCall
from workspaces.files.services import WorkspaceFiles
from workspaces.runtimes.docker.agent_socket import SocketChannel

THREADS = 4


@pytest.fixture
def dribbling() -> Iterator[Callable[[bytes, int], SocketChannel]]:
    """Connections whose other side sends a beginning, and then one byte after the other."""
    with ExitStack() as held:

        def begin(beginning: bytes, sent_at_once: int) -> SocketChannel:
            ours, theirs = socket.socketpair()
            held.callback(theirs.close)

            def dribble() -> None:
                with contextlib.suppress(OSError):
                    theirs.sendall(beginning + bytes(sent_at_once))
                    while not stopped.wait(0.01):
                        theirs.sendall(b"\0")

            stopped = threading.Event()
            thread = threading.Thread(target=dribble)
            thread.start()
            held.callback(thread.join)
            held.callback(stopped.set)
            errors, said = os.pipe2(os.O_CLOEXEC)
            held.callback(os.close, said)
            ending = os.memfd_create("ending", os.MFD_CLOEXEC)
            channel = SocketChannel(ours, os.getpid(), errors, ending)
            held.callback(channel.close)
            return channel

        yield begin


def frame(kind: bytes, length: int) -> bytes:
    return kind + length.to_bytes(4, "big")


def test_an_answer_that_comes_byte_by_byte_is_given_up(
    dribbling: Callable[[bytes, int], SocketChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.3)
    call = FileCall(dribbling(frame(b"H", 1 << 20), 0), {"action": "stat"})
    with pytest.raises(BadGateway):
        call.answer()


def test_content_that_comes_byte_by_byte_is_given_up(
    dribbling: Callable[[bytes, int], SocketChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.3)
    head = frame(b"H", 2) + b"{}" + frame(b"D", 256 * 1024)
    call = FileCall(dribbling(head, 100_000), {"action": "read"})
    assert call.answer() == {}
    with pytest.raises(BadGateway):
        assert len(b"".join(call.content())) == 256 * 1024


def test_a_workspace_that_takes_too_little_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.3)
    ours, theirs = socket.socketpair()
    stopped = threading.Event()

    def take() -> None:
        while not stopped.wait(0.05):
            theirs.recv(4096)

    thread = threading.Thread(target=take)
    errors, said = os.pipe2(os.O_CLOEXEC)
    channel = SocketChannel(ours, os.getpid(), errors, os.memfd_create("ending"))
    with theirs, contextlib.closing(channel):
        call = FileCall(channel, {"action": "write"})
        thread.start()
        try:
            with pytest.raises(BadGateway):
                call.store(BytesIO(bytes(16 << 20)))
        finally:
            stopped.set()
            thread.join()
            os.close(said)


def test_a_call_that_nobody_waits_for_is_given_up(
    dribbling: Callable[[bytes, int], SocketChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.001)
    call = FileCall(dribbling(b"", 0), {"action": "stat"}, abandoned=lambda: True)
    with pytest.raises(RequestTimeout):
        call.answer()


# ---------------------------------------------------------------- served


def running(box: Box) -> str:
    return box.run("cat /proc/[0-9]*/comm 2>/dev/null; true", user="root")  # some end meanwhile


@pytest.mark.docker
@pytest.mark.django_db
def test_a_hash_of_gigabytes_ends_with_its_caller(box: Box) -> None:
    box.run("truncate -s 500G large")
    files = WorkspaceFiles(adapter=box.launcher.adapter, run_id=box.run_id, by="", request_id="")
    calling: dict[str, dict[str, Any]] = {
        "stat": {"hash": True},
        "read": {},
        "write": {"ifMatch": ["0"]},
    }
    for action, members in calling.items():
        call = files.open(action, b"large", **members)
        eventually(lambda: "agent files" in running(box))
        call.close()
        eventually(lambda: "agent files" not in running(box))


@pytest.fixture
def server(box: Box, tmp_path: Path) -> Iterator[ApiProcess]:
    """The API with few threads."""
    with api_process(tmp_path / "api.log", SVC_API_THREADS=str(THREADS)) as served:
        yield served


def asking(box: Box, path: str) -> bytes:
    place = box.path("files/stat", path=path, hash="true")
    return f"GET {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_calls_of_a_workspace_that_stands_still_leave_threads_to_others(
    box: Box, server: ApiProcess
) -> None:
    container = box.launcher.container(box.runtime)
    container.kill(signal="STOP")  # its first process, which every call needs
    with ExitStack() as stack, selectors.DefaultSelector() as answered:
        for _ in range(3 * THREADS):
            sock = stack.enter_context(connect(server.port))
            answered.register(sock, selectors.EVENT_READ)
            sock.sendall(asking(box, "."))
        assert server.get("/healthz")[0] == 200
        assert answered.select(0) == []
        container.kill(signal="CONT")
        for key in list(answered.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            assert ended(key.fileobj).startswith(b"HTTP/1.1 200 ")


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_who_ends_its_side_while_its_call_waits_is_told_that_nothing_was_done(
    box: Box, server: ApiProcess
) -> None:
    container = box.launcher.container(box.runtime)
    container.kill(signal="STOP")
    with connect(server.port) as first, connect(server.port) as second:
        first.sendall(asking(box, "."))
        second.sendall(asking(box, "."))
        second.shutdown(socket.SHUT_WR)
        assert server.get("/healthz")[0] == 200  # both have arrived
        container.kill(signal="CONT")
        assert ended(first).startswith(b"HTTP/1.1 200 ")
        head, _, body = ended(second).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["code"] == "connection-half-closed"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_more_calls_than_may_wait_are_told_to_come_later(box: Box, server: ApiProcess) -> None:
    box.run("truncate -s 500G large")
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(server.port)) for _ in range(MOST_WAITING + 2)]
        for sock in sockets:
            sock.sendall(asking(box, "large"))
        with selectors.DefaultSelector() as answered:
            for sock in sockets:
                answered.register(sock, selectors.EVENT_READ)
            ((key, _),) = answered.select(LONG_WAIT)
        assert isinstance(key.fileobj, socket.socket)
        head, _, body = ended(key.fileobj).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 5\r\n" in head
        assert json.loads(body)["code"] == "too-many-file-calls"
        eventually(lambda: "agent files" in running(box))
    # All of them have left: none is begun for nobody, and the one that was ends.
    eventually(lambda: "agent files" not in running(box))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONG_WAIT)
    with contextlib.closing(connection):
        connection.request("GET", box.path("files/stat", path="."))
        assert connection.getresponse().status == 200
