"""Which host a TLS client asks for: a strict reader of the first message (RFC 8446, 4.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE = 22
MAX_BYTES = 64 * 1024
MAX_RECORDS = 32
"""Each read starts at the first record again, so many small ones would cost much time."""
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


class NotTls(ValueError):
    """What was sent is no ClientHello that we would pass on; the text says why."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What matters of it here."""

    host: str


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise NotTls("The ClientHello is cut short.")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))


def read_client_hello(data: bytes) -> ClientHello | None:
    """Return what the first message asks for; None while more of it is needed.

    Raises ``NotTls`` for anything but one well-formed ClientHello that names its host in clear.
    """
    message = _handshake_message(data)
    if message is None:
        return None
    body = _Reader(message)
    body.take(2 + 32)  # version, random
    for size in (1, 2, 1):  # session, cipher suites, compression
        body.vector(size)
    if not body.left:
        raise NotTls("The ClientHello names no host (no SNI).")
    extensions = body.vector(2)
    if body.left:
        raise NotTls("Something stands behind the ClientHello.")
    return ClientHello(_host_in(extensions))


def _handshake_message(data: bytes) -> bytes | None:
    """Put the message together out of the records that it may be spread over."""
    message = b""
    at = 0
    for _ in range(MAX_RECORDS):
        if len(data) > at and data[at] != HANDSHAKE:
            raise NotTls("It is not TLS.")
        if len(data) > at + 1 and data[at + 1] != 3:
            raise NotTls("It is not TLS.")
        if len(data) < at + 5:
            _refuse_too_long(data)
            return None
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if not 0 < length <= 1 << 14:
            raise NotTls("A record has a length that TLS does not know.")
        message += data[at + 5 : at + 5 + length]
        if message[:1] not in (b"", b"\1"):
            raise NotTls("The first message is no ClientHello.")
        if len(message) >= 4:
            wanted = int.from_bytes(message[1:4], "big")
            if wanted > MAX_BYTES:
                raise NotTls("The ClientHello is too long.")
            if len(message) >= 4 + wanted:
                if len(message) > 4 + wanted:
                    raise NotTls("Something stands behind the ClientHello.")
                return message[4:]
        at += 5 + length
        if len(data) < at:
            _refuse_too_long(data)
            return None
    raise NotTls(f"The ClientHello is spread over more than {MAX_RECORDS} records.")


def _refuse_too_long(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise NotTls("The ClientHello is too long.")


def _host_in(extensions: _Reader) -> str:
    host = ""
    seen: set[int] = set()
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise NotTls("The ClientHello has an extension twice.")
        seen.add(kind)
        if kind == _ENCRYPTED_HELLO:
            raise NotTls("The ClientHello hides its host (ECH). Switch ECH off in the client.")
        if kind == _SERVER_NAME:
            host = _server_name(content)
    if not host:
        raise NotTls("The ClientHello names no host (no SNI).")
    return host


def _server_name(content: _Reader) -> str:
    names = content.vector(2)
    kind = names.number(1)
    name = names.vector(2)
    if kind != 0 or names.left or content.left:
        raise NotTls("The ClientHello names no host, or several.")
    try:
        return name.take(name.left).decode("ascii").lower()
    except UnicodeDecodeError as error:
        raise NotTls("The ClientHello's host is not ASCII.") from error
