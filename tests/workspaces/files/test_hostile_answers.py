"""What a workspace answers whose root has put something else in the agent's place."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
from django.http.response import HttpResponseBase

from controlplane.errors import BadGateway, RequestTimeout
from tests.support.waiting import LONG_WAIT
from workspaces.files.call import FileCall
from workspaces.files.services import WorkspaceFiles
from workspaces.files.transfer import archive_answer, file_answer
from workspaces.runtimes.docker import DockerAdapter
from workspaces.runtimes.docker.agent_socket import SocketChannel

# To close an answer ends Django's request, which looks after an open connection.
pytestmark = pytest.mark.django_db

SHA256 = "0" * 64
HEAD = {"size": 8, "sha256": SHA256, "from": 0, "to": 8, "partial": False, "modifiedNs": 0}


@dataclass
class Hostile:
    """A connection to a workspace, and the other end of it."""

    channel: SocketChannel
    theirs: socket.socket
    errors: int

    def says(self, kind: bytes, payload: bytes) -> None:
        self.theirs.sendall(kind + len(payload).to_bytes(4, "big") + payload)

    def let_go(self) -> bool:
        """Whether our side has closed all that it had of the connection."""
        poll = select.poll()
        poll.register(self.errors, 0)
        gone = bool(poll.poll(0))
        while said := self.theirs.recv(65536):
            assert said[:1] == b"S"
        return gone


class Places(DockerAdapter):
    """Reaches one connection, whoever is asked for."""

    def __init__(self, channel: SocketChannel) -> None:
        super().__init__("unix:///nowhere", str(uuid4()))
        self._only = channel

    def open_agent(self, run_id: Any, arguments: Any) -> SocketChannel:
        return self._only


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(LONG_WAIT)
    errors, said = os.pipe2(os.O_CLOEXEC)
    ending = os.memfd_create("ending", os.MFD_CLOEXEC)
    channel = SocketChannel(ours, os.getpid(), errors, ending)
    yield Hostile(channel, theirs, said)
    channel.close()
    theirs.close()
    os.close(said)


SENSELESS: dict[str, dict[str, Any]] = {
    "no members": {},
    "no size": {**HEAD, "size": None},
    "a size without end": {**HEAD, "size": 1e999},
    "a range that ends before it begins": {**HEAD, "from": 5, "to": 3},
    "a range behind the end": {**HEAD, "to": 9},
    "no hash": {**HEAD, "sha256": "0"},
    "a header in the hash": {**HEAD, "sha256": "0\r\nSet-Cookie: a=b"},
    "a time that is a list": {**HEAD, "modifiedNs": []},
    "half a character": {**HEAD, "note": "\ud800"},
}


@pytest.mark.parametrize("told", SENSELESS.values(), ids=SENSELESS)
def test_a_head_that_makes_no_sense_is_an_error_and_keeps_nothing_open(
    hostile: Hostile, told: dict[str, Any]
) -> None:
    hostile.says(b"H", json.dumps(told).encode())
    call = FileCall(hostile.channel, {"action": "read"})
    with pytest.raises(BadGateway) as raised:
        file_answer(call, head_only=False)
    assert raised.value.code == "workspace-unreachable"
    assert hostile.let_go()


def test_an_archive_without_a_head_keeps_nothing_open(hostile: Hostile) -> None:
    hostile.says(b"H", b"[]")
    with pytest.raises(BadGateway):
        archive_answer(FileCall(hostile.channel, {"action": "pack"}))
    assert hostile.let_go()


@pytest.mark.django_db
def test_an_answer_that_nobody_reads_to_its_end_keeps_nothing_open(hostile: Hostile) -> None:
    hostile.says(b"H", json.dumps(HEAD).encode())
    answer: HttpResponseBase = file_answer(
        FileCall(hostile.channel, {"action": "read"}), head_only=False
    )
    assert answer.status_code == 200
    answer.close()
    assert hostile.let_go()


@pytest.mark.parametrize(
    "pieces",
    [[(b"D", b"12345678"), (b"D", b"9")], [(b"D", b"1"), (b"D", b"")], [(b"D", b"1"), (b"E", b"")]],
    ids=["too much", "nothing, perhaps for ever", "too little"],
)
def test_a_file_that_is_not_what_its_head_says_is_cut_off(
    hostile: Hostile, pieces: list[tuple[bytes, bytes]]
) -> None:
    hostile.says(b"H", json.dumps(HEAD).encode())
    call = FileCall(hostile.channel, {"action": "read"})
    answer = file_answer(call, head_only=False)
    for kind, payload in pieces:
        hostile.says(kind, payload)
    with pytest.raises(BadGateway):
        list(answer)
    answer.close()
    assert hostile.let_go()


@pytest.mark.parametrize("more", [b"D\x00\x00\x00\x04more", b""], ids=["data", "nothing"])
def test_an_archive_that_nobody_waits_for_any_more_is_given_up(
    hostile: Hostile, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workspaces.files.call.LOOK_SECONDS", 0.0)
    hostile.says(b"H", b"{}")
    call = FileCall(hostile.channel, {"action": "pack"}, lambda: gone)
    gone = False
    answer = archive_answer(call)
    hostile.theirs.sendall(more)
    gone = True
    with pytest.raises(RequestTimeout):
        list(answer)
    answer.close()
    assert hostile.let_go()


@pytest.mark.parametrize(
    "told", [{}, {"size": 1e999}, {"size": 1, "sha256": "0", "created": True}], ids=str
)
def test_a_write_whose_answer_makes_no_sense_is_an_error(
    hostile: Hostile, told: dict[str, Any]
) -> None:
    files = WorkspaceFiles(
        adapter=Places(hostile.channel), run_id=uuid4(), by="usr_test", request_id="test"
    )
    hostile.says(b"H", b"{}")
    hostile.says(b"E", json.dumps(told).encode())
    with pytest.raises(BadGateway):
        files.write(b"path", BytesIO())
    assert hostile.let_go()


@pytest.mark.parametrize("told", [{}, {"files": 1e999, "size": 1}, {"files": 1}], ids=str)
def test_an_unpacking_whose_answer_makes_no_sense_is_an_error(
    hostile: Hostile, told: dict[str, Any]
) -> None:
    files = WorkspaceFiles(
        adapter=Places(hostile.channel), run_id=uuid4(), by="usr_test", request_id="test"
    )
    hostile.says(b"H", b"{}")
    hostile.says(b"E", json.dumps(told).encode())
    with pytest.raises(BadGateway):
        files.unpack(b"path", BytesIO())
    assert hostile.let_go()
