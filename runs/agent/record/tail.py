"""The last bytes of a stream, with secrets masked, in constant memory."""

from __future__ import annotations

from typing import Optional, Sequence

from ..masking.masker import Masker

_MASK = b"*"
_LONGEST_TOKEN = 8192


class Tail:
    """Keeps the end of everything fed to it.

    Masks have the length of what they hide. So it is enough to keep the longest secret's length
    more than is shown: a secret that reaches into the shown part is then always kept whole,
    however it was cut into chunks. What `masker` finds is masked as well.
    """

    def __init__(
        self, limit: int, secrets: Sequence[bytes] = (), masker: Optional[Masker] = None
    ) -> None:
        self._limit = limit
        self._secrets = secrets
        self._masker = masker
        self._longest = max((len(secret) for secret in secrets), default=0)
        self._kept = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Append a chunk and forget what is too far back."""
        keep = self._limit + self._longest
        if self._masker is not None:
            keep = self._limit + max(self._longest, _LONGEST_TOKEN, self._masker.longest)
        self._kept += chunk[-keep:] if keep else b""
        # Trimming only now and then keeps many tiny chunks from moving the whole buffer each time.
        if len(self._kept) > 2 * keep + 65536:
            del self._kept[:-keep]

    def text(self) -> str:
        """At most `limit` bytes of UTF-8 without secrets and NUL; what is no text is replaced."""
        masked = mask(bytes(self._kept), self._secrets)
        if self._masker is not None:
            masked = self._masker.mask(masked)
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
