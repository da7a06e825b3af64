"""Crowds at the access: silent ones, ones with wrong keys, ones with names that are traps."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time

import asyncssh
import pytest

from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.enemy import SERVICE_REQUEST, USERAUTH_REQUEST, enemy, text, unharmed
from tests.support.waiting import LONG_WAIT

WRONG_KEYS = 1000
FREE_FAILURES = 900
CONNECTIONS = 40


def test_two_hundred_that_drip_a_login_keep_nobody_out(hall: Hall) -> None:
    client = hall.client()

    async def drip() -> None:
        found = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", hall.gateway.port) for _ in range(200))
        )
        words = b"SSH-2.0-drip\r\n" + bytes(100)
        stop = asyncio.Event()

        async def one(writer: asyncio.StreamWriter) -> None:
            for at in range(len(words)):
                if stop.is_set() or writer.is_closing():
                    return
                writer.write(words[at : at + 1])
                await asyncio.sleep(0.1)

        dripping = [asyncio.create_task(one(writer)) for _, writer in found]
        for _ in range(3):
            assert await asyncio.to_thread(client.said, "echo in") == b"in\n"
        stop.set()
        await asyncio.gather(*dripping, return_exceptions=True)
        for _, writer in found:
            writer.transport.abort()

    with unharmed(hall.gateway, client):
        asyncio.run(drip())


def test_whoever_never_logs_in_is_sent_away_in_time(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_LOGIN_GRACE_MS="1000")
    started = time.monotonic()
    said = b""
    with socket.create_connection(("127.0.0.1", gateway.port), LONG_WAIT) as silent:
        while data := silent.recv(4096):
            said += data
    assert time.monotonic() - started >= 0.9
    assert b"within 1 seconds" in said


@pytest.mark.slow
def test_a_thousand_wrong_keys_are_slowed_down_and_keep_nobody_out(hall: Hall) -> None:
    gateway = hall.another_gateway(
        SSH_GATEWAY_FAILED_LOGINS=str(FREE_FAILURES), SSH_GATEWAY_FAILED_LOGIN_WINDOW_MS="600000"
    )
    client = hall.client(gateway=gateway)
    left = iter(range(WRONG_KEYS))

    async def guess() -> None:
        for _ in left:
            async with enemy(gateway.port, hall.user, stops_before_login=True) as stranger:
                await stranger.secure
                stranger.say(SERVICE_REQUEST, text("ssh-userauth"))
                blob = text("ssh-ed25519") + text(os.urandom(32))
                stranger.say(
                    USERAUTH_REQUEST,
                    text(hall.user)
                    + text("ssh-connection")
                    + text("publickey")
                    + b"\0"
                    + text("ssh-ed25519")
                    + text(blob),
                )
                with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                    async with asyncio.timeout(LONG_WAIT):
                        await asyncio.shield(stranger.over)

    async def crowd() -> None:
        guessing = [asyncio.create_task(guess()) for _ in range(CONNECTIONS)]
        await asyncio.sleep(1)
        assert await asyncio.to_thread(client.said, "echo in") == b"in\n"
        await asyncio.gather(*guessing, return_exceptions=True)

    with unharmed(gateway, client):
        asyncio.run(crowd())
    lines = [json.loads(line) for line in gateway.told.splitlines() if '"key_unknown"' in line]
    delays = [line["delay"] for line in lines]
    assert len(delays) > FREE_FAILURES + 5
    assert delays == [min(max(0, at - FREE_FAILURES), 5) for at in range(1, len(delays) + 1)]


NAMES = [
    b"ws-\x1b[31m\nred\r\n\x07",
    b"ws-\0-01890a5d-ac96-774b-bcce-b302099a8057",
    b"ws-01890a5d-ac96-774b-bcce-b302099a8057\n",
    b"\xff\xfe",
    "ws-\u202e\u2028é\U0001f600".encode(),
    b"ws-" + b"A" * 65536,
    b"\x1b" * 65536,
    b" ",
]


def test_names_that_are_traps_are_refused_and_logged_in_one_line(hall: Hall) -> None:
    client = hall.client()

    async def knock(name: bytes) -> str:
        async with enemy(hall.gateway.port, "nobody", stops_before_login=True) as stranger:
            await stranger.secure
            stranger.say(SERVICE_REQUEST, text("ssh-userauth"))
            method = text("publickey") + b"\0" + text("ssh-ed25519") + text(b"no key")
            stranger.say(USERAUTH_REQUEST, text(name) + text("ssh-connection") + method)
            async with asyncio.timeout(LONG_WAIT):
                return await stranger.over

    with unharmed(hall.gateway, client):
        for name in NAMES:
            said = asyncio.run(knock(name))
            assert "has to be ws-<workspace id>" in said, name[:40]
            assert said.isascii()
            assert said.isprintable()
            assert len(said) <= 400


def test_keys_that_are_none_are_not_looked_up(hall: Hall) -> None:
    client = hall.client()
    blobs = [b"", b"\xff" * 4, text("ssh-ed25519") + text(bytes(31)), text("ssh-rsa") * 3000]
    blobs.append(base64.b64encode(os.urandom(60_000)))

    async def offer(blob: bytes) -> None:
        async with enemy(hall.gateway.port, hall.user, stops_before_login=True) as stranger:
            await stranger.secure
            stranger.say(SERVICE_REQUEST, text("ssh-userauth"))
            method = text("publickey") + b"\1" + text("ssh-ed25519") + text(blob) + text(blob)
            for _ in range(20):
                stranger.say(USERAUTH_REQUEST, text(hall.user) + text("ssh-connection") + method)
            with contextlib.suppress(TimeoutError, asyncio.CancelledError, asyncssh.Error):
                async with asyncio.timeout(1):
                    await asyncio.shield(stranger.over)

    logged = len(hall.gateway.told)
    with unharmed(hall.gateway, client):
        for blob in blobs:
            asyncio.run(offer(blob))
    assert '"key_unknown"' not in hall.gateway.told[logged:]
