"""What a workspace has instead of a bound secret: made, found in what it sends, and replaced.

A placeholder looks like the secret that it stands for, because tools check that, and is made of
letters, digits, ``_`` and ``-``, so that neither URLs nor JSON spell it differently.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Collection, Mapping, Sequence

from accounts.providers import Provider

_BASIC = b"basic "
_PREFIXES = {Provider.CLAUDE: "sk-ant-oat01-svcplaceholder", Provider.GITHUB: "ghp_svcplaceholder"}

Headers = Sequence[tuple[bytes, bytes]]


class Misplaced(Exception):
    """A client has sent a placeholder where nobody replaces it."""


class NotAHeader(ValueError):
    """A secret cannot be sent in a header; the text says why."""


def new_placeholder(provider: Provider) -> str:
    """Return a placeholder that nobody can guess."""
    return _PREFIXES.get(provider, "svcplaceholder") + secrets.token_hex(16)


def holds(data: bytes, placeholders: Collection[bytes]) -> bool:
    """Tell whether one of them is in some bytes."""
    return any(each in data for each in placeholders)


def in_head(target: bytes, headers: Headers, placeholders: Collection[bytes]) -> bool:
    """Tell whether one of them is anywhere in a request's head, also inside of Basic."""
    return holds(target, placeholders) or any(
        holds(name, placeholders)
        or holds(value, placeholders)
        or holds(_basic(value) or b"", placeholders)
        for name, value in headers
    )


def put_in(
    headers: Headers, secrets_by_header: Mapping[bytes, Mapping[bytes, str]]
) -> list[tuple[bytes, bytes]]:
    """Return the headers with secrets in the place of their placeholders.

    ``secrets_by_header`` has, for the name of a header, secrets by their placeholders. Raises
    ``NotAHeader``.
    """
    replaced = []
    for name, value in headers:
        for placeholder, secret in secrets_by_header.get(name, {}).items():
            value = _replaced(value, placeholder, secret)
        replaced.append((name, value))
    return replaced


def _replaced(value: bytes, placeholder: bytes, secret: str) -> bytes:
    plain = _basic(value)
    inside = plain is not None and placeholder in plain
    if not inside and placeholder not in value:
        return value
    try:
        sent = secret.strip().encode("ascii")
    except UnicodeEncodeError as error:
        raise NotAHeader("The secret has characters that no header can have.") from error
    if not sent.isascii() or any(byte < 0x20 or byte == 0x7F for byte in sent):
        raise NotAHeader("The secret has several lines or control characters.")
    if plain is not None and inside:
        return value[: len(_BASIC)] + base64.b64encode(plain.replace(placeholder, sent))
    return value.replace(placeholder, sent)


def _basic(value: bytes) -> bytes | None:
    """Return user and password of Basic authentication (RFC 7617)."""
    if value[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        return base64.b64decode(value[len(_BASIC) :].strip() + b"==")
    except binascii.Error:
        return None


class Watch:
    """Looks for placeholders in what is sent piece by piece."""

    def __init__(self, placeholders: Collection[bytes]) -> None:
        self._placeholders = placeholders
        self._kept = max(map(len, placeholders), default=1) - 1
        self._end = b""

    def look_at(self, data: bytes) -> None:
        """Raise ``Misplaced`` when one of them ends in these bytes, wherever it began."""
        if not self._placeholders:
            return
        seen = self._end + data
        self._end = seen[-self._kept :]
        if holds(seen, self._placeholders):
            raise Misplaced
