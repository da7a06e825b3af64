"""How connections are forwarded, held up, and ended, and what is said about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest
from django.db import connections

from runs.agent.session.channel import HEADER, Frame, FromClient, ToClient
from runs.models import Run
from runs.services import request_cancel
from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.scripted_engine import CONTAINER, Peer
from tests.stack.free_ports import free_port
from tests.stack.ssh import HOST
from tests.stack.worker_process import eventually
from tests.support.locked_rows import locked
from tests.support.waiting import LONG_WAIT

LONG = "echo here; exec sleep 600"
HOUR = 3600


def test_an_idle_connection_is_ended_with_words(hall: Hall) -> None:
    with (
        hall.timed_gateway(SSH_GATEWAY_IDLE_TIMEOUT_MS=1000 * HOUR) as gateway,
        hall.client(gateway=gateway).begun(LONG) as begun,
    ):
        gateway.pass_time(HOUR)
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    said = errors.decode()
    assert "The connection is closed: there was no traffic for 3600 seconds." in said
    assert "Received disconnect" in said
    (peer,) = hall.engine.peers
    eventually(lambda: peer.closed, what="the agent is hung up on")


def test_a_connection_in_use_is_not_idle(hall: Hall) -> None:
    with (
        hall.timed_gateway(SSH_GATEWAY_IDLE_TIMEOUT_MS=1000 * HOUR) as gateway,
        hall.client(gateway=gateway).begun("echo here; exec cat") as begun,
    ):
        process = begun.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(5):
            gateway.pass_time(0.6 * HOUR)
            process.stdin.write(b"still here\n")
            assert process.stdout.readline() == b"still here\n"
        gateway.pass_time(HOUR)
        assert b"there was no traffic for 3600 seconds" in process.stderr.read()


def test_a_client_that_is_dead_is_noticed(hall: Hall) -> None:
    with hall.timed_gateway() as gateway, hall.client(gateway=gateway).begun(LONG) as begun:
        begun.process.send_signal(signal.SIGSTOP)
        (peer,) = hall.engine.peers

        def hung_up() -> bool:
            gateway.pass_time(60)
            return peer.closed

        eventually(hung_up, what="the agent is hung up on")


def test_a_client_that_only_listens_is_kept(hall: Hall) -> None:
    client = hall.client()
    alive = (
        "-o",
        "ServerAliveInterval=1",
        "-o",
        "ServerAliveCountMax=300",
        "-o",
        "LogLevel=DEBUG3",
    )
    with client.begun(LONG, *alive) as begun:
        answers = 0
        assert begun.process.stderr is not None
        while answers < 3:  # each question whether the gateway is there is answered
            line = begun.process.stderr.readline()
            assert line, "the client has left"
            answers += b"receive packet: type 81" in line or b"receive packet: type 82" in line


def test_a_container_that_ends_is_told(hall: Hall) -> None:
    hall.engine.answers[f"/containers/{CONTAINER}/json"] = (200, {"State": {"Running": False}})
    assert "the workspace's container ended" in _said_when(
        hall, lambda peer: peer.writer.write_eof()
    )


def test_a_run_that_was_cancelled_is_told(hall: Hall) -> None:
    def cancel(peer: Peer) -> None:
        ending = {"code": None, "signal": "SIGTERM", "reason": "cancelled"}
        peer.send(ToClient.EXIT, 1, ending)
        peer.writer.write_eof()

    assert "the run was cancelled" in _said_when(hall, cancel)


def test_an_agent_that_ends_for_no_reason_is_told(hall: Hall) -> None:
    said = _said_when(hall, lambda peer: peer.writer.write_eof())
    assert "the session in the workspace ended" in said


FORGERIES: list[tuple[str, Callable[[Peer], None]]] = [
    ("unknown channel", lambda peer: peer.send(ToClient.STDOUT, 9, b"x")),
    ("unknown type", lambda peer: peer.send(99, 1, b"x")),
    ("type of the client", lambda peer: peer.send(FromClient.OPEN, 1, b"{}")),
    ("huge frame", lambda peer: peer.raw(HEADER.pack(ToClient.STDOUT, 1, 2**31))),
    ("no json", lambda peer: peer.send(ToClient.EXIT, 1, b"\xff")),
    ("no object", lambda peer: peer.send(ToClient.EXIT, 1, b"[1]")),
    ("deep json", lambda peer: peer.send(ToClient.EXIT, 1, b"[" * 60_000)),
    ("short window", lambda peer: peer.send(ToClient.WINDOW, 1, b"x")),
    ("long control frame", lambda peer: peer.send(ToClient.EXIT, 1, b" " * 70_000)),
]


@pytest.mark.parametrize("forge", [forge for _, forge in FORGERIES], ids=[n for n, _ in FORGERIES])
def test_an_agent_that_forges_ends_its_own_session_only(
    hall: Hall, forge: Callable[[Peer], None]
) -> None:
    client = hall.client()
    with client.begun(LONG):
        assert "does not speak this gateway's protocol" in _said_when(hall, forge)
        assert client.said("echo well") == b"well\n"


def test_an_agent_that_sends_more_than_was_asked_for_is_cut_off(hall: Hall) -> None:
    def flood(peer: Peer) -> None:
        for _ in range(200):
            peer.send(ToClient.STDOUT, 1, b"x" * 262_144)

    client = hall.client()
    with client.begun(LONG) as begun:
        begun.process.send_signal(signal.SIGSTOP)  # so that nothing is granted
        peer = hall.engine.peers[-1]
        hall.engine.do(lambda: flood(peer))
        eventually(lambda: peer.closed, what="the agent is cut off")
        begun.process.send_signal(signal.SIGCONT)
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    assert b"does not speak this gateway's protocol" in errors


def test_a_forward_carries_bytes_both_ways_and_their_ends(hall: Hall) -> None:
    opened: list[dict[str, object]] = []

    def echo(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.OPEN:
            opened.append(json.loads(frame.payload))
            peer.send(ToClient.OPENED, frame.channel, {})
            peer.send(ToClient.STDOUT, frame.channel, b"who first speaks: ")
        elif frame.type == FromClient.DATA:
            peer.send(ToClient.STDOUT, frame.channel, frame.payload)
        elif frame.type == FromClient.EOF:
            peer.send(ToClient.STDOUT, frame.channel, b"bye")
            peer.send(ToClient.EOF, frame.channel)
            ending = {"code": 0, "signal": None, "reason": "exited"}
            peer.send(ToClient.EXIT, frame.channel, ending)
        else:
            return False
        return True

    hall.engine.behaviour = echo
    done = hall.client().ssh("-W", "localhost:8080", HOST, given=b"hello ")
    assert (done.code, done.out) == (0, b"who first speaks: hello bye"), done
    assert opened == [{"kind": "forward", "host": "localhost", "port": 8080}]


def test_a_port_where_nobody_listens_is_told(hall: Hall) -> None:
    done = hall.client().ssh("-v", "-W", "localhost:81", HOST)
    assert done.code == 255
    assert "open failed: connect failed: closed" in done.err


def test_other_hosts_are_not_reached_through_a_workspace(hall: Hall) -> None:
    done = hall.client().ssh("-v", "-W", "192.0.2.1:80", HOST)
    assert "administratively prohibited: no forward to 192.0.2.1" in done.err
    assert "SSH_GATEWAY_FORWARD_HOSTS allows localhost, 127.0.0.1, ::1" in done.err
    frames = [frame for peer in hall.engine.peers for frame in peer.frames]
    assert FromClient.OPEN not in [frame.type for frame in frames]


def test_other_hosts_are_reached_when_that_is_allowed(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_FORWARD_HOSTS="*")
    done = hall.client(gateway=gateway).ssh("-v", "-W", "192.0.2.1:80", HOST)
    assert "connect failed: closed" in done.err


def test_what_is_not_forwarded_is_refused_in_words(hall: Hall) -> None:
    client = hall.client()
    remote = ("-R", f"{free_port()}:localhost:80", "-o", "ExitOnForwardFailure=yes")
    done = client.command("true", *remote, "-v")
    assert "remote port forwarding failed" in done.err
    assert "remote forwarding is not supported by this gateway" in done.err
    port = free_port()
    with client.begun(LONG, "-L", f"{port}:/run/some.sock", "-v") as begun:
        with socket.create_connection(("127.0.0.1", port), timeout=LONG_WAIT) as connection:
            assert connection.recv(1) == b""
        begun.process.terminate()
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    assert b"Unix sockets are not forwarded" in errors
    done = client.command("true", "-A", "-v", "-o", "IdentityAgent=/dev/null")
    assert done.code == 0
    for what in ("socket", "remote"):
        assert f'"what": "{what}"' in hall.gateway.told


def test_a_connection_has_so_many_channels(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_MAX_CHANNELS="2")
    client = hall.client(gateway=gateway)
    with client.connection() as shared, client.begun(LONG, *shared), client.begun(LONG, *shared):
        done = client.command("true", *shared, "-o", "LogLevel=INFO")
        assert "Session open refused by peer" in done.err


def test_a_gateway_that_is_stopped_says_so_and_goes_in_time(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_DRAIN_MS="500")
    with hall.client(gateway=gateway).begun(LONG) as begun:
        started = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        eventually(lambda: _refuses(gateway.port), what="nobody new gets in")
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
        assert b"the gateway is being stopped" in errors
        assert gateway.wait(LONG_WAIT) == 0
        assert time.monotonic() - started > 0.4
    (peer,) = hall.engine.peers
    eventually(lambda: peer.closed, what="the agent is hung up on")


def test_a_second_signal_ends_at_once(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_DRAIN_MS="600000")
    with hall.client(gateway=gateway).begun(LONG):
        gateway.process.send_signal(signal.SIGTERM)
        eventually(lambda: _refuses(gateway.port), what="nobody new gets in")
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.wait(LONG_WAIT) == 0


def test_a_port_that_is_taken_is_told_in_one_line(hall: Hall) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(AssertionError, match=f"Cannot listen on 127.0.0.1 port {port}"):
            hall.another_gateway(SVC_SSH_PORT=port)


def test_sessions_that_are_not_recorded_are_reported_by_the_gateway(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_RECORD_POLICY="off")
    assert hall.client(gateway=gateway).said("echo in") == b"in\n"
    spec = json.loads(hall.engine.peers[0].frames[0].payload)
    assert spec["record"] is None
    run = Run.objects.get(pk=spec["runId"])
    assert not run.recorded
    eventually(
        lambda: Run.objects.get(pk=run.pk).status == "completed", what="the run is completed"
    )


def test_a_run_that_is_cancelled_while_it_is_begun_lets_nobody_in(hall: Hall) -> None:
    def cancel(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.SPEC:
            request_cancel(Run.objects.get(pk=json.loads(frame.payload)["runId"]))
        return False

    hall.engine.behaviour = _outside(cancel)
    done = hall.client().command("true")
    assert done.code == 255
    assert "the control plane refuses" in done.err
    assert not [f for f in hall.engine.peers[0].frames if f.type == FromClient.OPEN]


def test_an_agent_that_ends_before_its_run_is_reported_as_running_is_told(hall: Hall) -> None:
    runs: list[Run] = []

    def hold_up_the_report(peer: Peer) -> None:
        with locked(runs[0]):
            held.set()
            eventually(lambda: peer.closed, what="the gateway has seen the end")
        connections.close_all()

    def end(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.SPEC:
            runs.append(Run(pk=json.loads(frame.payload)["runId"]))
            holding.append(threading.Thread(target=hold_up_the_report, args=[peer]))
            holding[0].start()
            assert held.wait(LONG_WAIT)
            peer.send(ToClient.READY, 0, {"spoolId": "spool"})
            peer.writer.write_eof()
        return True

    held = threading.Event()
    holding: list[threading.Thread] = []
    gateway = hall.another_gateway(SSH_GATEWAY_RECORD_POLICY="off")
    hall.engine.behaviour = end
    done = hall.client(gateway=gateway).command("true")
    holding[0].join()
    assert (done.code, "the session in the workspace ended" in done.err) == (255, True), done.err
    eventually(
        lambda: Run.objects.get(pk=runs[0].pk).status == "completed", what="the run is completed"
    )


def test_the_log_tells_who_where_and_how_but_never_what(hall: Hall) -> None:
    secret = os.urandom(8).hex()
    hall.client().said(f"echo {secret}; cat >&2", given=secret.encode())
    eventually(lambda: '"connection_closed"' in hall.gateway.told, what="the end is logged")
    lines = [json.loads(line) for line in hall.gateway.told.splitlines() if line.startswith("{")]
    begun = [line for line in lines if line["event"] == "session_begun"][-1]
    told = ("connection", "address", "port", "principal", "fingerprint", "workspace", "run_id")
    assert all(begun[name] for name in told)
    assert secret not in hall.gateway.told


def _said_when(hall: Hall, action: Callable[[Peer], None]) -> str:
    """Return what a client says when its agent does something while a program runs."""
    with hall.client().begun(LONG) as begun:
        peer = hall.engine.peers[-1]
        hall.engine.do(lambda: action(peer))
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
        assert begun.process.returncode == 255
    return errors.decode()


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return True
    return False


def _outside(behaviour: Callable[[Peer, Frame], bool]) -> Callable[[Peer, Frame], bool]:
    """Return a behaviour that may use the database."""

    def behave(peer: Peer, frame: Frame) -> bool:
        found: list[bool] = []

        def work() -> None:
            found.append(behaviour(peer, frame))
            connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    return behave
