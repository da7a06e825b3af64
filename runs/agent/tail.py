"""The last bytes of a stream, with secrets masked, in constant memory."""

from __future__ import annotations

from typing import Sequence

_MASK = b"*"


class Tail:
    """Keeps the end of everything fed to it.

    Masks have the length of what they hide. So it is enough to keep the longest secret's length
    more than is shown: a secret that reaches into the shown part is then always kept whole,
    however it was cut into chunks.
    """

    def __init__(self, limit: int, secrets: Sequence[bytes] = ()) -> None:
        self._limit = limit
        self._secrets = secrets
        self._keep = limit + max((len(secret) for secret in secrets), default=0)
        self._kept = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Append a chunk and forget what is too far back."""
        self._kept += chunk[-self._keep :] if self._keep else b""
        # Trimming only now and then keeps many tiny chunks from moving the whole buffer each time.
        if len(self._kept) > 2 * self._keep + 65536:
            del self._kept[: -self._keep]

    def text(self) -> str:
        """At most `limit` bytes of UTF-8 without secrets and NUL; what is no text is replaced."""
        masked = mask(bytes(self._kept), self._secrets)
        return bounded_text(masked[-self._limit :] if self._limit else b"", self._limit)


def mask(content: bytes, secrets: Sequence[bytes]) -> bytes:
    """The same number of bytes with every occurrence of a secret, overlapping ones too, masked."""
    masked = bytearray(content)
    for secret in secrets:
        start = content.find(secret)
        while start != -1:
            masked[start : start + len(secret)] = _MASK * len(secret)
            start = content.find(secret, start + 1)
    return bytes(masked)


def bounded_text(content: bytes, limit: int) -> str:
    """The end of `content` as text of at most `limit` bytes of UTF-8."""
    text = content.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    # A replacement character is longer than the byte that it stands for.
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return encoded[-limit:].decode("utf-8", "ignore") if limit else ""
