"""Forwarding one TCP connection: every byte, both ends, and no connection."""

from __future__ import annotations

import socket
import subprocess

from tests.runs.agent.booted import PYTHON, Workspace
from tests.runs.agent.recorded import listener


def _forward(workspace: Workspace, port: int) -> subprocess.Popen[bytes]:
    argv = [PYTHON, "-I", str(workspace.archive), "forward", "--port", str(port)]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _all_of(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_both_directions_carry_every_byte_and_end_by_themselves(workspace: Workspace) -> None:
    content = bytes(range(256)) * 4000
    with listener() as server:
        forward = _forward(workspace, server.getsockname()[1])
        connection, _ = server.accept()
        with connection, forward:
            assert forward.stdin is not None
            assert forward.stdout is not None
            forward.stdin.write(b"a question")
            forward.stdin.close()
            assert _all_of(connection) == b"a question"
            # The client's end has come; the answer still goes through.
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            assert forward.stdout.read() == content
            assert forward.wait() == 0


def test_a_server_that_closes_first_ends_the_forward(workspace: Workspace) -> None:
    with listener() as server:
        forward = _forward(workspace, server.getsockname()[1])
        connection, _ = server.accept()
        with forward:
            connection.sendall(b"goodbye")
            connection.close()
            assert forward.stdout is not None
            assert forward.stdout.read() == b"goodbye"
            assert forward.wait() == 0


def test_a_client_that_is_gone_ends_the_connection(workspace: Workspace) -> None:
    with listener() as server:
        forward = _forward(workspace, server.getsockname()[1])
        connection, _ = server.accept()
        with connection, forward:
            assert forward.stdin is not None
            assert forward.stdout is not None
            forward.stdout.close()
            forward.stdin.close()
            try:
                while True:
                    connection.sendall(bytes(65536))
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert forward.wait() == 0


def test_a_port_that_nobody_listens_on_is_named(workspace: Workspace) -> None:
    with listener() as server:
        port = server.getsockname()[1]
    with _forward(workspace, port) as forward:
        _, complaint = forward.communicate()
        assert forward.returncode == 1
        assert f"127.0.0.1:{port}".encode() in complaint
