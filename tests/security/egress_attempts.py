"""What a workspace tries in order to reach something; runs inside it, with nothing of ours."""

import base64
import concurrent.futures
import contextlib
import json
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

WAIT = 4.0


def connected(address: str, port: int) -> socket.socket:
    """A connection to a name or an address."""
    return socket.create_connection((address, port), timeout=WAIT)


def said(connection: socket.socket) -> bytes:
    """All that comes back."""
    told = b""
    try:
        while len(told) < 1 << 21:
            data = connection.recv(65536)
            if not data:
                break
            told += data
    except OSError as error:
        return told + f" then {error}".encode()
    return told


def raw(address: str, port: int, text: str) -> bytes:
    """Bytes of ours as they are."""
    with connected(address, port) as connection:
        connection.sendall(text.encode("latin-1"))
        return said(connection)


def pieces(address: str, port: int, text: str) -> bytes:
    """The same, byte by byte."""
    with connected(address, port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in text.encode("latin-1"):
            connection.sendall(bytes([byte]))
        return said(connection)


def context() -> ssl.SSLContext:
    """TLS that trusts everybody: what is judged is who is reached."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def tls(address: str, port: int, sni: str | None, text: str = "hello\n") -> bytes:
    """TLS with some server name, or none."""
    with connected(address, port) as connection:
        wrapped = context().wrap_socket(connection, server_hostname=sni)
        with wrapped:
            wrapped.sendall(text.encode())
            return said(wrapped)


def hello_of(sni: str | None) -> bytes:
    """The first message of TLS for a server name."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context().wrap_bio(incoming, outgoing, server_hostname=sni)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def with_extension(hello: bytes, kind: int, content: bytes) -> bytes:
    """The message with one more extension, its lengths put right."""
    body = bytearray(hello[5:])
    at = 4 + 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    size = int.from_bytes(body[at : at + 2], "big")
    extra = struct.pack("!HH", kind, len(content)) + content
    body[at : at + 2] = (size + len(extra)).to_bytes(2, "big")
    body += extra
    body[1:4] = (len(body) - 4).to_bytes(3, "big")
    return hello[:3] + len(body).to_bytes(2, "big") + bytes(body)


def crafted(address: str, port: int, what: str) -> bytes:
    """A first message of TLS that is not as usual; any answer of a server counts."""
    hello = hello_of("allowed.test")
    if what == "ech":
        hello = with_extension(hello, 0xFE0D, b"\0" * 64)
    elif what == "two names":
        name = b"other.test"
        entry = b"\0" + len(name).to_bytes(2, "big") + name
        hello = with_extension(hello, 0, len(entry).to_bytes(2, "big") + entry)
    elif what == "split":  # allowed: records may be split anywhere
        body = hello[5:]
        hello = b"".join(
            hello[:3] + len(part).to_bytes(2, "big") + part for part in (body[:7], body[7:])
        )
    with connected(address, port) as connection:
        connection.sendall(hello)
        answer = connection.recv(5)
        return b"welcome" if answer[:1] == b"\x16" else answer


def udp(address: str, port: int, text: str = "hello") -> bytes:
    """A datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(WAIT)
        datagrams.sendto(text.encode(), (address, port))
        datagrams.recv(4096)
        return b"welcome"


def query(name: str, kind: int) -> bytes:
    """A query of DNS."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + struct.pack("!HH", kind, 1)


def answered(reply: bytes) -> bytes:
    """Whether an answer has records."""
    count = int.from_bytes(reply[6:8], "big")
    return b"welcome" if count else f"code {reply[3] & 15}, no records".encode()


def dns(address: str, name: str, kind: int, over: str = "udp") -> bytes:
    """Ask some server for a name."""
    if over == "tcp":
        with connected(address, 53) as connection:
            asked = query(name, kind)
            connection.sendall(len(asked).to_bytes(2, "big") + asked)
            return answered(connection.recv(4096)[2:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(WAIT / 2)
        for last in (False, True):
            datagrams.sendto(query(name, kind), (address, 53))
            try:
                return answered(datagrams.recv(4096))
            except TimeoutError:
                if last:
                    raise
    raise AssertionError


def ping(address: str) -> bytes:
    """ICMP, without privileges where the kernel allows it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(WAIT)
        icmp.sendto(b"\x08\0\0\0\0\1\0\1hello", (address, 0))
        icmp.recv(1024)
        return b"welcome"


def protocol(address: str, number: int) -> bytes:
    """Packets of another protocol."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, number) as packets:
        packets.settimeout(WAIT)
        packets.sendto(b"\0" * 16, (address, 0))
        packets.recv(1024)
        return b"welcome"


def v6(address: str, port: int) -> bytes:
    """A connection over IPv6."""
    with socket.socket(socket.AF_INET6) as connection:
        connection.settimeout(WAIT)
        connection.connect((address, port))
        return said(connection)


def silent(address: str, port: int) -> bytes:
    """Somebody who waits for the server to speak."""
    with connected(address, port) as connection:
        connection.settimeout(2)
        return said(connection)


def late(address: str, port: int, sni: str | None) -> bytes:
    """Two server names on one connection: the second when the first was accepted."""
    with connected(address, port) as connection:
        connection.sendall(hello_of("allowed.test"))
        connection.recv(16384)
        connection.sendall(hello_of(sni))
        answer = said(connection)
        return b"welcome" if b"welcome" in answer else b"refused"


def many(address: str, port: int, text: str, count: int) -> bytes:
    """The same at once, many times: how many succeeded."""

    def one(_: int) -> bool:
        try:
            return b"welcome" in raw(address, port, text)
        except OSError:
            return False

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return b"welcome" if all(pool.map(one, range(count))) else b"some failed"


KINDS: dict[str, Callable[..., bytes]] = {
    each.__name__: each
    for each in (raw, pieces, tls, crafted, udp, dns, ping, protocol, v6, silent, late, many)
}


def outcome(attempt: list[Any]) -> str:
    """What came of it."""
    kind, *arguments = attempt
    try:
        return KINDS[kind](*arguments).decode("latin-1")[:4000]
    except (OSError, ValueError, IndexError) as error:
        return f"failed: {type(error).__name__}: {error}"


if __name__ == "__main__":
    attempts = json.loads(base64.b64decode(sys.argv[1]))
    WAIT = float(sys.argv[2])
    threading.stack_size(1 << 18)
    with concurrent.futures.ThreadPoolExecutor(min(len(attempts), 120)) as pool:
        sys.stdout.write(json.dumps(list(pool.map(outcome, attempts))))
