"""An exec's WebSocket, taken apart: against another end that speaks either version."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
)

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.kubernetes.exec_failures import refusal_of
from workspaces.runtimes.kubernetes.exec_wire import (
    END_OF_INPUT,
    ERRORS,
    INPUT_BYTES,
    OUTPUT,
    STATUS,
    ExecRefused,
    ExecWire,
    exec_path,
)

if TYPE_CHECKING:
    from _typeshed import TraceFunction

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


def opened(protocol: str = V4) -> tuple[ExecWire, WSConnection]:
    """A wire that an API server has accepted."""
    wire, server = ExecWire(), WSConnection(ConnectionType.SERVER)
    server.receive_data(wire.request("cluster:6443", "/exec", {"authorization": "Bearer me"}))
    (asked,) = server.events()
    assert isinstance(asked, Request)
    assert asked.subprotocols == [V5, V4]
    assert (b"authorization", b"Bearer me") in asked.extra_headers
    assert wire.receive(server.send(AcceptConnection(subprotocol=protocol))) == ([], b"")
    assert (wire.opened, wire.protocol) == (True, protocol)
    return wire, server


@pytest.mark.parametrize("protocol", [V5, V4])
def test_output_and_errors_come_apart_and_the_end_has_its_code(protocol: str) -> None:
    wire, server = opened(protocol)
    failed = {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "41"}]},
    }
    data = b"".join(
        server.send(BytesMessage(bytes((channel,)) + content))
        for channel, content in (
            (OUTPUT, b""),
            (OUTPUT, b"one"),
            (ERRORS, b"worried"),
            (OUTPUT, b"two"),
            (STATUS, json.dumps(failed).encode()),
        )
    )
    data += server.send(CloseConnection(code=1000))
    found, _ = wire.receive(data)
    assert found == [(OUTPUT, b"one"), (ERRORS, b"worried"), (OUTPUT, b"two")]
    assert (wire.exit_code, wire.closed, wire.failure) == (41, True, "")


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=30))
def test_however_the_stream_is_cut_every_byte_comes_once(content: bytes, cuts: list[int]) -> None:
    wire, server = opened()
    half = len(content) // 2
    data = server.send(BytesMessage(b"\x01" + content[:half], message_finished=False))
    data += server.send(BytesMessage(content[half:]))
    data += server.send(BytesMessage(b'\x03{"status": "Success"}'))
    got = b""
    for size in [*cuts, len(data)]:
        found, _ = wire.receive(data[:size])
        data = data[size:]
        got += b"".join(piece for channel, piece in found if channel == OUTPUT)
        if not data:
            break
    assert got == content
    assert wire.exit_code == 0


def test_input_is_framed_and_its_end_is_said() -> None:
    wire, server = opened()
    content = bytes(range(256)) * (INPUT_BYTES // 256) + b"rest"
    for piece in wire.input(content):
        server.receive_data(piece)
    server.receive_data(wire.frame(END_OF_INPUT))
    said = b""
    messages = []
    for event in server.events():
        assert isinstance(event, Message)
        said += bytes(event.data)
        if event.message_finished:
            messages.append(said)
            said = b""
    assert [each[0] for each in messages] == [0, 0, 0]
    assert messages[0][1:5] == INPUT_BYTES.to_bytes(4, "big")
    assert b"".join(each[5:] for each in messages) == content
    assert messages[2][1:] == bytes(4)


def test_a_ping_is_answered() -> None:
    wire, server = opened()
    _, answer = wire.receive(server.send(Ping(b"there?")))
    server.receive_data(answer)
    assert [type(event) for event in server.events()] == [Pong]


def test_a_connection_that_ends_without_a_word_has_no_exit_code() -> None:
    wire, _ = opened()
    wire.receive(None)
    assert (wire.closed, wire.exit_code) == (True, None)
    assert wire.receive(b"more") == ([], b"")


def test_what_is_no_websocket_closes_the_wire() -> None:
    wire, _ = opened()
    wire.receive(b"\xff" * 64)
    assert wire.closed


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (404, 'pods "svc-1" not found', "runtime-gone"),
        (500, "container not found (workspace)", "runtime-not-running"),
        (400, "cannot exec in a stopped container", "runtime-not-running"),
        (403, 'User "u" cannot create resource "pods/exec"', "adapter-unavailable"),
        (500, "dial tcp 10.0.0.1:10250: connect: no route to host", "adapter-unavailable"),
    ],
)
def test_a_refused_exec_says_why(status: int, message: str, code: str) -> None:
    wire, server = ExecWire(), WSConnection(ConnectionType.SERVER)
    server.receive_data(wire.request("cluster", "/exec", {}))
    list(server.events())
    body = json.dumps({"message": message}).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    data = server.send(RejectConnection(status_code=status, headers=headers, has_body=True))
    data += server.send(RejectData(data=body))
    with pytest.raises(ExecRefused) as caught:
        wire.receive(data)
    error: LaunchError = refusal_of(caught.value.status, caught.value.content)
    assert error.code == code


def test_a_command_is_passed_on_word_by_word() -> None:
    path = exec_path("ns", "svc-1", "workspace", ["sh", "-c", 'echo "a b" && ü', ""])
    assert path.startswith("/api/v1/namespaces/ns/pods/svc-1/exec?container=workspace&")
    assert path.endswith("command=sh&command=-c&command=echo+%22a+b%22+%26%26+%C3%BC&command=")


def giving_way(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
    """Let another thread go on between any two lines of the library's making of a frame."""
    if frame.f_code.co_name != "send_data":
        return None
    time.sleep(0.0001)
    return giving_way


def test_frames_of_two_threads_are_each_whole() -> None:
    wire, server = opened()
    made: list[list[bytes]] = [[], []]

    def send(thread: int) -> None:
        sys.settrace(giving_way)
        made[thread].extend(wire.frame(b"%d" % number) for number in range(50))

    threads = [threading.Thread(target=send, args=(each,)) for each in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for frames in made:
        server.receive_data(b"".join(frames))
        received = [event.data for event in server.events() if isinstance(event, BytesMessage)]
        assert received == [b"\0%d" % number for number in range(50)]
