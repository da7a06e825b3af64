"""Public keys for tests: real ones of ``ssh-keygen``, and blobs put together by hand."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SK_ED25519 = "sk-ssh-ed25519@openssh.com"
SK_ECDSA = "sk-ecdsa-sha2-nistp256@openssh.com"


def string(value: bytes) -> bytes:
    """``value`` behind its length."""
    return len(value).to_bytes(4, "big") + value


def number(value: int) -> bytes:
    """A positive number as SSH writes it."""
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big"))


def line(algorithm: str, *parts: bytes, comment: str = "") -> str:
    """The line of a key whose blob is the algorithm and ``parts``."""
    blob = string(algorithm.encode()) + b"".join(parts)
    return f"{algorithm} {base64.b64encode(blob).decode()} {comment}".strip()


def point() -> bytes:
    """A point on NIST P-256."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def ed25519(comment: str = "") -> str:
    """An Ed25519 key that nobody else has."""
    return line("ssh-ed25519", string(os.urandom(32)), comment=comment)


def sk_ed25519() -> str:
    """A security key's Ed25519 key."""
    return line(SK_ED25519, string(os.urandom(32)), string(b"ssh:"))


def sk_ecdsa() -> str:
    """A security key's ECDSA key."""
    return line(SK_ECDSA, string(b"nistp256"), string(point()), string(b"ssh:"))


def generated(folder: Path, *options: str) -> Path:
    """The private key's file that ``ssh-keygen`` makes; the public one lies beside it."""
    path = folder / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-N", "", "-C", "ada@laptop", "-f", str(path), *options], check=True
    )
    return path


def fingerprint(folder: Path, key: str) -> str:
    """What ``ssh-keygen -lf`` says of a public key."""
    path = folder / "shown.pub"
    path.write_text(key + "\n")
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(path)], check=True, capture_output=True, text=True
    )
    return done.stdout.split()[1]
