"""A fuzzer at the access: before the login, after the keys were exchanged, and from inside."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.enemy import (
    CHANNEL_OPEN,
    CLOSE,
    DATA,
    EOF,
    EXTENDED,
    GLOBAL_REQUEST,
    KEXINIT,
    REQUEST,
    SERVICE_REQUEST,
    USERAUTH_REQUEST,
    WINDOW_ADJUST,
    Enemy,
    enemy,
    number,
    text,
    unharmed,
)
from tests.stack.ssh import Client

SEED = 20240
VERSION = b"SSH-2.0-fuzz\r\n"
WAIT_SECONDS = 1.0
AT_ONCE = 8

Talk = Callable[[random.Random], bytes]


def _frame(chance: random.Random, payload: bytes) -> bytes:
    padding = -(5 + len(payload)) % 8 + 8
    return struct.pack("!IB", 1 + len(payload) + padding, padding) + payload + bytes(padding)


def _kexinit(chance: random.Random) -> bytes:
    lists = (
        *("curve25519-sha256,kex-strict-c-v00@openssh.com", "ssh-ed25519"),
        *("aes128-gcm@openssh.com", "aes128-gcm@openssh.com", "hmac-sha2-256", "hmac-sha2-256"),
        *("none", "none", "", ""),
    )
    rest = b"".join(text(names) for names in lists) + bytes(5)
    return bytes([KEXINIT]) + chance.randbytes(16) + rest


def _mutated(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(changed) + 1)
        action = chance.randrange(4)
        if action == 0 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif action == 1:
            changed[at:at] = chance.randbytes(chance.choice((1, 4, 300)))
        elif action == 2:
            del changed[at : at + chance.choice((1, 4, 60))]
        else:
            changed[at : at + 4] = chance.choice(
                (b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff")
            )
    return bytes(changed)


FIRST_WORDS: list[Talk] = [
    lambda chance: chance.randbytes(chance.choice((1, 100, 20_000))),
    lambda chance: b"SSH-2.0-" + chance.randbytes(chance.choice((10, 300, 9000))) + b"\r\n",
    lambda chance: b"SSH-1.5-old\r\n",
    lambda chance: b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    lambda chance: b"\n" * chance.choice((1, 5000)),
    lambda chance: b"x" * 70_000,
    lambda chance: VERSION + chance.randbytes(chance.choice((3, 64, 60_000))),
    lambda chance: VERSION + struct.pack("!I", chance.choice((0, 1, 2, 5, 2**31, 2**32 - 1))) * 8,
    lambda chance: VERSION + struct.pack("!IB", 12, chance.choice((0, 11, 12, 255))) + bytes(40),
    lambda chance: VERSION + _frame(chance, _kexinit(chance))[: chance.randrange(1, 250)],
    lambda chance: VERSION + _frame(chance, _mutated(chance, _kexinit(chance))),
    lambda chance: VERSION + _mutated(chance, _frame(chance, _kexinit(chance))),
    lambda chance: VERSION + _frame(chance, _kexinit(chance)) * 3,
    lambda chance: (
        VERSION
        + _frame(chance, _kexinit(chance))
        + _frame(chance, bytes([30]) + text(chance.randbytes(chance.choice((0, 31, 32, 1184)))))
    ),
    lambda chance: (
        VERSION
        + _frame(chance, _kexinit(chance))
        + _frame(chance, bytes([chance.randrange(256)]) + chance.randbytes(40))
    ),
    lambda chance: (
        VERSION + _frame(chance, b"\x01" + number(2) + text(b"\xff\x00\x1b[2J") + text(""))
    ),
]


def _structured(chance: random.Random) -> tuple[int, bytes]:
    """Return a packet that has a meaning, or nearly."""
    channel = number(chance.choice((0, 0, 0, 1, 2, 5, 64, 2**31, 2**32 - 1)))
    wide = number(chance.choice((0, 1, 255, 32768, 2**31, 2**32 - 1)))
    name = chance.choice(
        (
            *("shell", "exec", "pty-req", "env", "signal", "window-change", "x11-req", "break"),
            *("auth-agent-req@openssh.com", "eow@openssh.com", "subsystem", "exit-status", ""),
            *("__class__", "open", "process-open", "\x00", "a" * 3000),
        )
    )
    kinds = ("session", "direct-tcpip", "direct-streamlocal@openssh.com", "x11", "forwarded-tcpip")
    requests = ("tcpip-forward", "cancel-tcpip-forward", "keepalive@openssh.com", "no-more")
    host = text(chance.choice(("localhost", "h\x00st", "\x1b[2J", "é" * 200, "")))
    return chance.choice(
        (
            (CHANNEL_OPEN, text(chance.choice(kinds)) + channel + wide + wide + host + wide),
            (CHANNEL_OPEN, text("session") + channel + number(2**21) + number(32768)),
            (WINDOW_ADJUST, channel + wide),
            (DATA, channel + text(chance.randbytes(chance.choice((0, 1, 30_000))))),
            (EXTENDED, channel + number(1) + text(b"x")),
            (EOF, channel),
            (CLOSE, channel),
            (REQUEST, channel + text(name) + b"\x01" + text("echo fuzz") + wide * 4 + host),
            (REQUEST, channel + text("exec") + b"\x01" + text("echo fuzz")),
            (REQUEST, channel + text("pty-req") + b"\x01" + text("vt\x1b") + wide * 4 + host),
            (GLOBAL_REQUEST, text(chance.choice(requests)) + b"\x01" + host + wide),
            (USERAUTH_REQUEST, text("ws-\x1b") + text("ssh-connection") + text("none")),
            (SERVICE_REQUEST, text(chance.choice(("ssh-userauth", "\xff", "ssh-connection")))),
            (chance.randrange(256), chance.randbytes(chance.choice((0, 4, 9, 200)))),
            (chance.randrange(81, 128), channel + chance.randbytes(16)),
        )
    )


async def _speak_first(chance: random.Random, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        words = chance.choice(FIRST_WORDS)(chance)
        for at in range(
            0, len(words), chance.choice((1, 7, 70_000)) if len(words) < 400 else 70_000
        ):
            writer.write(words[at : at + (1 if len(words) < 400 else 70_000)])
        end = chance.randrange(4)
        if end == 0:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await writer.drain()
            writer.transport.abort()
        elif end == 1:
            writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.choice((0.05, 0.3))):
                while await reader.read(65536):
                    pass
    except OSError:
        pass
    finally:
        writer.transport.abort()


class Mutant(Enemy):
    """Breaks one of its packets on the way, the number ``breaks`` of them."""

    chance = random.Random()

    def send_packet(self, pkttype: int, *args: bytes, **how: Any) -> None:
        """Send it, broken when it is its turn."""
        if pkttype > 2 and self.chance.random() < 0.2:
            payload = _mutated(self.chance, b"".join(args) or b"\0")
            super().send_packet(pkttype, payload, **how)
        else:
            super().send_packet(pkttype, *args, **how)


async def _speak_securely(chance: random.Random, port: int, user: str, client: Client) -> None:
    """Mutate the handshake and the login, or speak up without one."""
    if chance.random() < 0.5:
        Mutant.chance = random.Random(chance.random())
        key = client.folder / "key"
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS), enemy(port, user, key, made=Mutant) as mutant:
                mutant.open_program(0)
                await mutant.over
        return
    async with enemy(port, user, stops_before_login=True) as stranger:
        await stranger.secure
        if chance.random() < 0.5:
            stranger.say(SERVICE_REQUEST, text("ssh-userauth"))
        for _ in range(chance.choice((1, 20, 200))):
            kind, payload = _structured(chance)
            stranger.say(kind, payload)
        await _rest(stranger, 0.3)


async def _speak_inside(chance: random.Random, port: int, user: str, client: Client) -> None:
    """Log in in order, then say anything."""
    async with enemy(port, user, client.folder / "key") as member:
        for _ in range(chance.choice((1, 3, 10))):
            member.open_program(0)
        for _ in range(chance.choice((1, 50, 2000))):
            kind, payload = _structured(chance)
            if chance.random() < 0.02:
                payload = _mutated(chance, payload)
            member.say(kind, payload)
            if chance.random() < 0.05:
                await asyncio.sleep(0)
        if chance.random() < 0.3:
            member.break_off()
        await _rest(member, 0.5)


async def _rest(one: Enemy, seconds: float) -> None:
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(one.over)


async def _fuzz(hall: Hall, client: Client, seconds: float, seed: int, **least: int) -> None:
    """Do all that for so long, and until each was done often enough, as busy as the machine is."""
    done = {"first": 0, "secure": 0, "inside": 0}
    end = time.monotonic() + seconds

    def over() -> bool:
        return time.monotonic() >= end and all(done[what] >= least[what] for what in least)

    async def one(seed: int) -> None:
        chance = random.Random(seed)
        while not over():
            where = chance.choices(("first", "secure", "inside"), (6, 3, 1))[0]
            try:
                if where == "first":
                    await _speak_first(chance, hall.gateway.port)
                elif where == "secure":
                    await _speak_securely(chance, hall.gateway.port, hall.user, client)
                else:
                    await _speak_inside(chance, hall.gateway.port, hall.user, client)
            except (OSError, asyncio.CancelledError):
                pass  # it has thrown us out
            done[where] += 1

    await asyncio.gather(*(one(seed + number) for number in range(AT_ONCE)))


@pytest.mark.parametrize(
    "seconds", [5, pytest.param(60, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_whatever_comes_over_the_wire_harms_nobody_else(hall: Hall, seconds: int) -> None:
    client = hall.client()
    asyncio.run(_fuzz(hall, client, 1, seed=1))
    with unharmed(hall.gateway, client):
        least = {"first": 10 * seconds, "secure": seconds, "inside": 1}
        asyncio.run(_fuzz(hall, client, seconds, seed=SEED, **least))
