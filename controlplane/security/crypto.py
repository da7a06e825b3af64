"""Sealing secrets at rest: AES-256-GCM, bound to the row they belong to.

A sealed value is ``version (1 byte) ‖ key id (1 byte) ‖ nonce (12 bytes) ‖ ciphertext and tag``.
The associated data names the row and its owner, so a sealed value moved to another row does not
open. Nothing here reads settings or logs anything.
"""

from __future__ import annotations

import base64
import os

VERSION = 1
NONCE_BYTES = 12
KEY_BYTES = 32


class SealError(Exception):
    """A sealed value does not open: wrong key, wrong row, or damaged."""


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of ``SVC_CREDENTIALS_KEY``; raise ``SealError`` when it is malformed."""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as exc:
        raise SealError("The credentials key is not base64.") from exc
    if len(key) != KEY_BYTES:
        raise SealError(f"The credentials key has {len(key)} bytes instead of {KEY_BYTES}.")
    return key


def seal(plaintext: bytes, *, key: bytes, key_id: int, context: str) -> bytes:
    """Return ``plaintext`` sealed under ``key`` for the row that ``context`` names."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    header = bytes((VERSION, key_id))
    nonce = os.urandom(NONCE_BYTES)
    return header + nonce + AESGCM(key).encrypt(nonce, plaintext, header + context.encode())


def unseal(sealed: bytes, *, keys: dict[int, bytes], context: str) -> bytes:
    """Return the plaintext of ``sealed``; ``keys`` maps key ids to keys (two during a rotation).

    Raises ``SealError`` without saying which part did not fit.
    """
    # Every process knows how to open what is sealed, and most never do: it is much to load.
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(sealed) < 2 + NONCE_BYTES or sealed[0] != VERSION or sealed[1] not in keys:
        raise SealError("The sealed value cannot be opened.")
    header, nonce, ciphertext = sealed[:2], sealed[2 : 2 + NONCE_BYTES], sealed[2 + NONCE_BYTES :]
    try:
        return AESGCM(keys[sealed[1]]).decrypt(nonce, ciphertext, header + context.encode())
    except InvalidTag as exc:
        raise SealError("The sealed value cannot be opened.") from exc
