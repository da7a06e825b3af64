"""Seals: what is signed when a record ends, and the Ed25519 signature over it.

Needs neither Django nor a database, so that a seal can be checked anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SEAL_VERSION = 1
_CONTEXT = b"svc-run-seal-v1\0"
"""Comes before what is signed, so that a signature means a seal and nothing else."""


def canonical(told: Any) -> bytes:
    """Return JSON in the one form that is hashed, signed and compared: sorted, compact, ASCII."""
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a key in base64; raises ``ValueError``."""
    key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    if len(key) != 32:
        raise ValueError(f"The key has {len(key)} bytes instead of 32.")
    return key


def public_key_of(private: bytes) -> bytes:
    """Return the 32 bytes of the public key that belongs to a private one."""
    return (
        Ed25519PrivateKey.from_private_bytes(private)
        .public_key()
        .public_bytes(Encoding.Raw, PublicFormat.Raw)
    )


def key_id(public: bytes) -> str:
    """Return the short name of a public key."""
    return hashlib.sha256(public).hexdigest()[:32]


def sign(seal: bytes, *, private: bytes) -> bytes:
    """Return the signature over a seal."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(_CONTEXT + seal)


def digest(seal: bytes) -> str:
    """Return the SHA-256 of a seal, in hexadecimal digits."""
    return hashlib.sha256(seal).hexdigest()


def envelope(payload: bytes, *, payload_type: str, private: bytes) -> dict[str, Any]:
    """Return ``payload`` signed as DSSE (https://github.com/secure-systems-lab/dsse) has it."""
    told = payload_type.encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(told), told, len(payload), payload)
    signature = Ed25519PrivateKey.from_private_bytes(private).sign(signed)
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [
            {
                "keyid": key_id(public_key_of(private)),
                "sig": base64.b64encode(signature).decode(),
            }
        ],
    }


def signed_by(seal: bytes, signature: bytes, *, public: bytes) -> bool:
    """Return whether the holder of the private key to ``public`` signed ``seal``."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _CONTEXT + seal)
    except (InvalidSignature, ValueError):
        return False
    return True
