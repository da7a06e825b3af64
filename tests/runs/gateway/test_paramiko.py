"""A client that is neither OpenSSH nor asyncssh: it reads until the end, and asks for an agent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import paramiko

from tests.runs.gateway.conftest import Hall
from tests.stack.ssh import Client
from tests.support.waiting import LONG_WAIT

SECONDS = LONG_WAIT
REFUSED = b"Agent forwarding is not supported by this gateway"


@contextmanager
def entered(hall: Hall) -> Iterator[paramiko.Transport]:
    """Enter the workspace."""
    client: Client = hall.client()
    address = ("127.0.0.1", hall.gateway.port)
    transport = paramiko.Transport(socket.create_connection(address, timeout=SECONDS))
    with closing(transport):
        # Paramiko's own limits are shorter than a busy machine may take.
        transport.banner_timeout = transport.handshake_timeout = SECONDS
        transport.auth_timeout = transport.channel_timeout = SECONDS
        key = paramiko.Ed25519Key.from_private_key_file(str(client.folder / "key"))
        transport.connect(username=hall.user, pkey=key)
        yield transport


@contextmanager
def session(transport: paramiko.Transport) -> Iterator[paramiko.Channel]:
    """Open a channel that never waits for ever."""
    channel = transport.open_session(timeout=SECONDS)
    channel.settimeout(SECONDS)
    with closing(channel):
        yield channel


def read(channel: paramiko.Channel) -> bytes:
    """Read until the end of the output."""
    return b"".join(iter(lambda: channel.recv(65536), b""))


def read_errors(channel: paramiko.Channel) -> bytes:
    """Read until the end of what was said beside the output."""
    return b"".join(iter(lambda: channel.recv_stderr(65536), b""))


def test_a_client_that_reads_until_the_end_of_the_output_finds_it(hall: Hall) -> None:
    with entered(hall) as transport, session(transport) as channel:
        channel.exec_command("echo word; exit 3")
        assert read(channel) == b"word\n"
        assert channel.eof_received, "closed without a word; some programs wait for this one"
        assert channel.recv_exit_status() == 3


def test_the_end_of_much_output_comes_after_all_of_it(hall: Hall) -> None:
    # More than a window holds, so that the exit is known before the output has gone out.
    with entered(hall) as transport, session(transport) as channel:
        channel.exec_command("head -c 5000000 /dev/zero")
        assert len(read(channel)) == 5_000_000
        assert channel.eof_received
        assert channel.recv_exit_status() == 0


def test_a_refused_agent_is_told_once_to_whoever_sits_at_a_terminal(hall: Hall) -> None:
    said = []
    with entered(hall) as transport:
        for terminal in (False, True, True):
            with session(transport) as channel:
                channel.request_forward_agent(lambda agent: None)
                if terminal:
                    channel.get_pty()
                channel.exec_command("true")
                assert read(channel) == b""
                said.append(read_errors(channel))
    assert said[0] == said[2] == b""
    assert said[1].count(REFUSED) == 1
