"""People who may enter, and use that against the gateway: storms, floods, and deaf ears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from runs.agent.session.channel import MAX_DATA, Frame, FromClient, ToClient
from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.enemy import (
    CHANNEL_OPEN,
    CLOSE,
    DATA,
    EOF,
    OPEN_CONFIRMED,
    OPEN_REFUSED,
    SUCCESS,
    Enemy,
    enemy,
    number,
    text,
    unharmed,
)
from tests.runs.gateway.scripted_engine import Peer
from tests.stack.ssh import Client
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

SERVED_SECONDS = LONG_WAIT
"""A gateway that an enemy holds up answers nobody for longer than that."""


def attack(hall: Hall, client: Client, work: Callable[[Enemy], Coroutine[Any, Any, None]]) -> None:
    """Do something inside, as an enemy who has logged in."""

    async def do() -> None:
        async with enemy(hall.gateway.port, hall.user, client.folder / "key") as member:
            await work(member)

    asyncio.run(do())


async def begin(member: Enemy, command: str, channel: int = 0, **how: int) -> None:
    """Have a command executed; ``channel`` counts up from 0."""
    confirmed = member.counts.get(OPEN_CONFIRMED, 0)
    member.open_program(channel, **how)
    await member.hears(OPEN_CONFIRMED, confirmed + 1)
    member.ask(channel, "exec", text(command))


async def promptly(client: Client) -> None:
    """Hold the gateway to serving somebody else meanwhile."""
    said = await asyncio.to_thread(client.said, "echo in", timeout=SERVED_SECONDS)
    assert said == b"in\n"


@pytest.fixture
def client(hall: Hall) -> Client:
    """A client that may enter."""
    return hall.client()


@contextlib.contextmanager
def asleep(hall: Hall) -> Iterator[None]:
    """Have the engine and the agents stand still, as when they are stopped."""
    still, awake = threading.Event(), threading.Event()

    def sleep() -> None:
        still.set()
        awake.wait(LONG_WAIT)

    hall.engine.do(sleep)
    assert still.wait(LONG_WAIT)
    try:
        yield
    finally:
        awake.set()


# -------------------------------------------------------------------------- many of what is allowed


def test_a_storm_of_channels_stops_at_the_limit(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        for channel in range(5000):
            member.open_program(channel)
        await member.hears(OPEN_REFUSED, 5000 - 64)
        # Refusals need nobody's answer and come first.
        await member.hears(OPEN_CONFIRMED, 64)
        assert member.counts[OPEN_REFUSED] == 5000 - 64
        await promptly(client)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


def test_channels_that_are_opened_and_closed_at_once_leave_nothing(
    hall: Hall, client: Client
) -> None:
    async def storm(member: Enemy) -> None:
        for count in range(300):
            member.open_program(0)
            await member.hears(OPEN_CONFIRMED, count + 1)
            member.ask(member.theirs, "shell", reply=False)
            member.say(EOF, number(member.theirs))
            member.say(CLOSE, number(member.theirs))
        await promptly(client)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


def test_one_channel_runs_one_program(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "echo one; exec sleep 600")
        for _ in range(500):
            member.ask(0, "exec", text("exec sleep 600"))
            member.ask(0, "shell")
            member.ask(0, "subsystem", text("sftp"))
        await member.hears(100, 1500)
        assert member.counts[SUCCESS] == 1

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)
    assert sum(frame.type == FromClient.OPEN for frame in hall.engine.peers[1].frames) == 1


def test_a_flood_of_variables_is_cut_to_what_is_allowed(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        member.open_program(0)
        await member.hears(OPEN_CONFIRMED)
        for count in range(20_000):
            member.ask(0, "env", text(f"LC_{count}") + text("x" * 100), reply=False)
            if count % 500 == 0:
                await member.sent()
        member.ask(0, "exec", text("env | grep -c ^LC_"))
        await member.hears(DATA)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)
    (opened,) = (f for f in hall.engine.peers[1].frames if f.type == FromClient.OPEN)
    assert len(json.loads(opened.payload)["env"]) == 64


def test_storms_of_sizes_and_signals_are_stood(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        member.open_program(0)
        await member.hears(OPEN_CONFIRMED)
        member.ask(0, "pty-req", text("xterm") + number(80) * 4 + text(""), reply=False)
        member.ask(0, "exec", text("trap : USR1; echo here; while :; do sleep 0.1; done"))
        await member.hears(DATA)
        for count in range(20_000):
            member.ask(0, "window-change", number(count % 500 + 1) * 4, reply=False)
            if count % 20 == 0:
                member.ask(0, "signal", text("USR1"), reply=False)
                member.ask(0, "signal", text("no\x1bsignal" * 100), reply=False)
            if count % 500 == 0:
                await member.sent()
        await promptly(client)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


@pytest.mark.slow
def test_storms_that_an_agent_does_not_take_are_not_kept(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "echo here; exec sleep 600")
        await member.hears(DATA)
        with asleep(hall):
            for count in range(60_000):
                member.ask(0, "window-change", number(count % 500 + 1) * 4, reply=False)
                member.ask(0, "signal", text("USR1"), reply=False)
                if count % 500 == 0:
                    await member.sent()
                if member.over.done():
                    break

    with unharmed(hall.gateway, client, grows=16):
        attack(hall, client, storm)


def test_channels_that_an_agent_never_ends_are_counted(hall: Hall, client: Client) -> None:
    def never(peer: Peer, frame: Frame) -> bool:
        return frame.type in (FromClient.OPEN, FromClient.CLOSE)

    async def storm(member: Enemy) -> None:
        hall.engine.behaviour = never
        for count in range(1500):
            member.open_program(0)
            async with asyncio.timeout(LONG_WAIT):
                while sum(member.counts.get(k, 0) for k in (OPEN_CONFIRMED, OPEN_REFUSED)) <= count:
                    if member.over.done():
                        return
                    await asyncio.sleep(0)
            member.ask(member.theirs, "exec", text("x" * 20_000), reply=False)
            member.say(CLOSE, number(member.theirs))

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)
        hall.engine.behaviour = lambda peer, frame: False
    peer = hall.engine.peers[1]
    assert sum(frame.type == FromClient.OPEN for frame in peer.frames) < 1000


# ---------------------------------------------------------------------------------- deaf and greedy


@pytest.mark.slow
def test_a_client_that_reads_no_answers_is_not_answered_without_end(
    hall: Hall, client: Client
) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "exec sleep 600")
        await member.hears(SUCCESS)
        member.deafen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                for count in range(150_000):
                    member.ask_all("no-such-thing@example.com")
                    if count % 500 == 0:
                        await member.sent()
        await promptly(client)

    with unharmed(hall.gateway, client, grows=24):
        attack(hall, client, storm)


@pytest.mark.slow
def test_a_key_exchange_that_is_never_finished_keeps_no_answers(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "exec sleep 600")
        await member.hears(SUCCESS)
        member._send_kexinit()
        member._kexinit_sent = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                for count in range(100_000):
                    member.ask_all("no-such-thing@example.com")
                    if count % 500 == 0:
                        await member.sent()
                    if member.over.done():
                        break

    with unharmed(hall.gateway, client, grows=24):
        attack(hall, client, storm)


def test_output_that_nobody_reads_waits_at_the_program(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        for channel in range(8):
            await begin(member, "exec yes", channel)
        member.deafen()
        windows = hall.engine.peers[-1].windows
        async with asyncio.timeout(LONG_WAIT):
            while len(windows) < 8 or max(windows.values()) >= MAX_DATA:
                await asyncio.sleep(0.01)  # until no program may write any more
        await promptly(client)

    with unharmed(hall.gateway, client, grows=64):
        attack(hall, client, storm)


def test_output_in_the_smallest_pieces_does_not_hold_up_others(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        member.open_program(0, packet=1)
        with contextlib.suppress(TimeoutError):
            await member.hears(OPEN_CONFIRMED, within=5)
        member.ask(0, "exec", text("exec head -c 100000000 /dev/zero"))
        for _ in range(3):
            await promptly(client)

    with unharmed(hall.gateway, client, grows=64):
        attack(hall, client, storm)


@pytest.mark.slow
def test_input_that_no_program_reads_is_bounded_by_its_window(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "echo here; exec sleep 600")
        await member.hears(DATA)
        with asleep(hall):
            for _ in range(2000):
                member.say(DATA, number(0) + text(bytes(32768)))
                await member.sent()
                if member.over.done():
                    break
            assert await member.over

    with unharmed(hall.gateway, client, grows=24):
        attack(hall, client, storm)


def test_windows_that_overflow_are_no_windows(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "echo here; exec cat")
        await member.hears(DATA)
        for _ in range(20_000):
            member.say(93, number(0) + number(2**32 - 1))
        await member.sent()
        await promptly(client)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


@pytest.mark.parametrize("kind", [EOF, CLOSE], ids=["eof", "close"])
def test_ends_that_come_twice_end_the_connection_only(
    hall: Hall, client: Client, kind: int
) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "exec cat")
        await member.hears(SUCCESS)
        member.say(kind, number(0))
        member.say(kind, number(0))
        assert await member.over

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


def test_keys_may_be_exchanged_again_and_again(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "echo here; exec cat")
        await member.hears(DATA)
        end = time.monotonic() + 4
        while time.monotonic() < end and not member.over.done():
            member._send_kexinit()
            member._kexinit_sent = True
            while not member._kex_complete and not member.over.done():
                await asyncio.sleep(0)
        await promptly(client)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


# ----------------------------------------------------------------------------- what nobody may have


def test_thousands_of_requests_that_nobody_gets_fill_no_log(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        await begin(member, "exec sleep 600")
        await member.hears(SUCCESS)
        for count in range(3000):
            member.ask_all("tcpip-forward", text("*") + number(0))
            away = text("direct-tcpip") + number(9) + number(2**20) + number(32768)
            member.say(
                CHANNEL_OPEN, away + text("10.0.0.1") + number(22) + text("1.2.3.4") + number(9)
            )
            member.ask(0, "auth-agent-req@openssh.com")
            member.ask(0, "x11-req", b"\0" + text("MIT") + text("00") + number(0))
            if count % 100 == 0:
                await member.sent()
        await member.hears(OPEN_REFUSED, 3000)
        await promptly(client)

    logged = len(hall.gateway.told)
    with unharmed(hall.gateway, client):
        attack(hall, client, storm)
    assert len(hall.gateway.told[logged:].splitlines()) < 200


PLACES = [
    *[("localhost", port) for port in (0, 65536, 2**32 - 1)],
    *[(host, 80) for host in ("10.0.0.1", "loc\0alhost", "127.0.0.1\n", "\x1b[2J", "é", "", "0")],
    *[(host, 80) for host in ("localhost.", "127.1", "::ffff:10.0.0.1", "a" * 20_000)],
]


def test_places_that_are_not_allowed_are_refused_in_one_line(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        for count, (host, port) in enumerate(PLACES):
            wanted = text("direct-tcpip") + number(count) + number(2**20) + number(32768)
            member.say(
                CHANNEL_OPEN, wanted + text(host) + number(port) + text("\x1b]0;x\x07") + number(1)
            )
        await member.hears(OPEN_REFUSED, len(PLACES))

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)
    frames = [frame for peer in hall.engine.peers for frame in peer.frames]
    asked = [json.loads(frame.payload) for frame in frames if frame.type == FromClient.OPEN]
    assert not [request for request in asked if request["kind"] == "forward"]


def test_garbage_for_sftp_is_the_servers_to_judge(hall: Hall, client: Client) -> None:
    async def storm(member: Enemy) -> None:
        member.open_program(0)
        await member.hears(OPEN_CONFIRMED)
        member.ask(0, "subsystem", text("sftp\0\n\x1b" * 50))
        member.say(DATA, number(0) + text(os.urandom(30_000)))
        await member.hears(CLOSE)

    with unharmed(hall.gateway, client):
        attack(hall, client, storm)


# ----------------------------------------------------------------------- what comes from the inside


FORGED_ENDS: list[dict[str, Any]] = [
    {"code": 10**30, "signal": None, "reason": "exited"},
    {"code": -1, "signal": None, "reason": "exited"},
    {"code": True, "signal": 3, "reason": ["x"]},
    {"code": 1.5, "signal": "\ud800", "reason": None},
    {"code": None, "signal": "\x1b[2J" * 1000, "reason": "r" * 60_000},
    {},
]


@pytest.mark.parametrize("end", FORGED_ENDS, ids=range(len(FORGED_ENDS)))
def test_an_end_that_is_forged_inside_ends_one_program(
    hall: Hall, client: Client, end: dict[str, Any]
) -> None:
    def forge(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.OPEN and b"forged" in frame.payload:
            peer.send(ToClient.OPENED, frame.channel, {"process": 1})
            peer.send(ToClient.EXIT, frame.channel, end)
            return True
        return False

    hall.engine.behaviour = forge
    with unharmed(hall.gateway, client):
        assert client.command("forged").code != 0 or end["code"] in (10**30, True)


def test_a_stopped_agent_does_not_keep_an_idle_connection(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_IDLE_TIMEOUT_MS="1500")
    client = hall.client(gateway=gateway)
    hall.engine.behaviour = lambda peer, frame: frame.type != FromClient.SPEC
    done = client.command("sleep 600")
    assert "there was no traffic" in done.err
    eventually(lambda: all(p.closed for p in hall.engine.peers), what="the agent is hung up on")


def test_forgers_are_cut_off_one_by_one(hall: Hall, client: Client) -> None:
    def flood(peer: Peer, frame: Frame) -> bool:
        if frame.type != FromClient.OPEN or b"forged" not in frame.payload:
            return False
        complaint = {"message": "\x1b[31m\n" * 500}
        for _ in range(2000):
            peer.send(ToClient.ERROR, frame.channel, complaint)
            peer.send(ToClient.OPENED, frame.channel, {})
            peer.raw(b"\r\n\x1b[2J" * 100, stream=2)
        peer.send(ToClient.REFUSED, frame.channel, {"code": "\x1b\n", "message": "\x1b\n" * 2000})
        return True

    hall.engine.behaviour = flood
    with unharmed(hall.gateway, client):
        assert client.command("forged").code == 127


def test_a_client_that_leaves_while_the_engine_starts_leaves_no_agent(
    hall: Hall, client: Client
) -> None:
    async def leave(member: Enemy) -> None:
        await asyncio.sleep(0.5)

    with unharmed(hall.gateway, client, files=4):
        with asleep(hall):
            for _ in range(10):
                attack(hall, client, leave)
        eventually(lambda: '"entry_refused"' in hall.gateway.told, what="nobody is let in")
        eventually(
            lambda: all(peer.closed for peer in hall.engine.peers), what="the agents are hung up on"
        )
