"""Reading OpenSSH public keys: one line, the way ``~/.ssh/id_ed25519.pub`` holds it.

The blob is read as strictly as OpenSSH writes it (RFC 4253 section 6.6, RFC 5656, RFC 8709,
OpenSSH's ``PROTOCOL.u2f``): no bytes too many, no number or point in a second form. So the
fingerprint of the blob is the one that ``ssh-keygen -lf`` shows, and no key has two.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 16384
MAX_EXPONENT_BITS = 64
MAX_APPLICATION_BYTES = 1024
ED25519_BYTES = 32
CERTIFICATE_MARK = "-cert-v01@"
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File-")
OTHER_FORMAT = re.compile(r"-----? ?BEGIN [A-Z0-9 ]*(?:PUBLIC KEY|CERTIFICATE)")


class PublicKeyRefused(ValueError):
    """The text is not a public key that is taken; ``code`` is kebab-case, the message is shown."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key; ``comment`` is what followed it on its line."""

    algorithm: str
    blob: bytes
    comment: str = ""

    @property
    def line(self) -> str:
        """The key in its one stored form: algorithm and padded base64, without the comment."""
        return f"{self.algorithm} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ``ssh-keygen -lf`` shows it."""
        return fingerprint_of(self.blob)


def fingerprint_of(blob: bytes) -> str:
    """Return ``SHA256:`` and the unpadded base64 of the SHA-256 of ``blob``."""
    digest = hashlib.sha256(blob).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def refuse_private_key(text: str) -> None:
    """Raise :class:`PublicKeyRefused` (``private-key-refused``) when ``text`` holds a private key.

    To be asked first: whoever pastes the wrong file needs to know it, in whatever shape it came.
    """
    if PRIVATE_KEY.search(text):
        raise PublicKeyRefused(
            "private-key-refused",
            "This is a private key. It was not stored; send the .pub file beside it, and consider "
            "the private key disclosed.",
        )


def parse_public_key(text: str) -> PublicKey:
    """Return the key on the line ``<algorithm> <base64> [comment]``.

    Raises :class:`PublicKeyRefused` for everything else, with a message that says what to do and
    repeats nothing of the line.
    """
    refuse_private_key(text)
    line = text.strip()
    if OTHER_FORMAT.match(line):
        raise PublicKeyRefused(
            "key-format-unsupported",
            "This is a different key format; convert it with ssh-keygen -i -m RFC4716 (or PKCS8).",
        )
    if "\n" in line or "\r" in line:
        raise PublicKeyRefused("not-one-line", "Send one public key, on one line.")
    algorithm, _, rest = line.replace("\t", " ").partition(" ")
    _refuse_other_algorithms(algorithm, rest)
    encoded, _, comment = rest.strip().partition(" ")
    blob = _decode(encoded)
    reader = _Reader(blob)
    if reader.string() != algorithm.encode():
        raise PublicKeyRefused(
            "key-algorithm-mismatch", "The key does not have the algorithm that the line names."
        )
    ALGORITHMS[algorithm](reader)
    reader.end()
    return PublicKey(algorithm, blob, comment.strip())


def _refuse_other_algorithms(algorithm: str, rest: str) -> None:
    if algorithm in ALGORITHMS:
        return
    if CERTIFICATE_MARK in algorithm:
        raise PublicKeyRefused(
            "certificate-refused", "This is a certificate; send the public key that it certifies."
        )
    later = [word for word in rest.split() if word in ALGORITHMS or CERTIFICATE_MARK in word]
    if later and not algorithm.startswith(("ssh-", "ecdsa-", "sk-")):
        raise PublicKeyRefused(
            "key-options-refused",
            "Options in front of the key are not accepted; begin with the algorithm.",
        )
    raise PublicKeyRefused(
        "key-algorithm-unsupported",
        f"A public key begins with one of {', '.join(ALGORITHMS)}.",
    )


def _decode(encoded: str) -> bytes:
    if not encoded:
        raise PublicKeyRefused("key-malformed", "The key is missing after its algorithm.")
    bare = encoded.rstrip("=")
    padded = bare + "=" * (-len(bare) % 4)
    try:
        blob = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise PublicKeyRefused("key-not-base64", "The key is not base64.") from exc
    # Python ignores the bits after the last byte; two texts would then be one key.
    if encoded not in (bare, padded) or base64.b64encode(blob).decode() != padded:
        raise PublicKeyRefused("key-not-base64", "The key's base64 has an invalid ending.")
    return blob


def _malformed(message: str) -> PublicKeyRefused:
    return PublicKeyRefused("key-malformed", f"The key is damaged: {message}")


class _Reader:
    """The strings and numbers of a blob, each behind its length (RFC 4251 section 5)."""

    def __init__(self, blob: bytes) -> None:
        self._rest = blob

    def string(self) -> bytes:
        size = int.from_bytes(self._rest[:4], "big")
        if len(self._rest) < 4 + size or len(self._rest) < 4:
            raise _malformed("it ends too early.")
        value, self._rest = self._rest[4 : 4 + size], self._rest[4 + size :]
        return value

    def number(self) -> int:
        raw = self.string()
        value = int.from_bytes(raw, "big", signed=True)
        # One leading zero byte only where the number would be negative without it.
        if value <= 0 or (raw[0] == 0 and raw[1] < 0x80):
            raise _malformed("a number in it is not in its only form.")
        return value

    def end(self) -> None:
        if self._rest:
            raise _malformed("there are bytes after its end.")


def _read_ed25519(reader: _Reader) -> None:
    if len(reader.string()) != ED25519_BYTES:
        raise _malformed(f"an Ed25519 key has {ED25519_BYTES} bytes.")


def _read_rsa(reader: _Reader) -> None:
    exponent, modulus = reader.number(), reader.number()
    if modulus.bit_length() < MIN_RSA_BITS:
        raise PublicKeyRefused(
            "key-too-short",
            f"This RSA key has {modulus.bit_length()} bits; at least {MIN_RSA_BITS} are "
            "required. Make another one: ssh-keygen -t ed25519.",
        )
    if modulus.bit_length() > MAX_RSA_BITS:
        raise PublicKeyRefused(
            "key-too-long",
            f"This RSA key has more than {MAX_RSA_BITS} bits, which no client or server accepts.",
        )
    if not modulus & 1:
        raise _malformed("the modulus of an RSA key must be odd.")
    if exponent < 3 or not exponent & 1 or exponent.bit_length() > MAX_EXPONENT_BITS:
        raise _malformed(
            f"the exponent of an RSA key is odd, at least 3 and of {MAX_EXPONENT_BITS} bits at "
            "the most."
        )


def _ecdsa(curve: ec.EllipticCurve, name: str) -> Callable[[_Reader], None]:
    size = 1 + 2 * ((curve.key_size + 7) // 8)

    def read(reader: _Reader) -> None:
        if reader.string() != name.encode():
            raise _malformed("its curve is not that of its algorithm.")
        point = reader.string()
        if len(point) != size or point[0] != 4:
            raise _malformed(f"a point on {name} has {size} bytes and is not compressed.")
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(curve, point)
        except ValueError as exc:
            raise _malformed(f"its point is not on {name}.") from exc

    return read


def _with_application(read: Callable[[_Reader], None]) -> Callable[[_Reader], None]:
    """Read a security key's blob: a key, and the application that it was made for."""

    def read_both(reader: _Reader) -> None:
        read(reader)
        application = reader.string()
        if not application or b"\0" in application or len(application) > MAX_APPLICATION_BYTES:
            raise _malformed("it names no application.")

    return read_both


ALGORITHMS: dict[str, Callable[[_Reader], None]] = {
    "ssh-ed25519": _read_ed25519,
    "ecdsa-sha2-nistp256": _ecdsa(ec.SECP256R1(), "nistp256"),
    "ecdsa-sha2-nistp384": _ecdsa(ec.SECP384R1(), "nistp384"),
    "ecdsa-sha2-nistp521": _ecdsa(ec.SECP521R1(), "nistp521"),
    "ssh-rsa": _read_rsa,
    "sk-ssh-ed25519@openssh.com": _with_application(_read_ed25519),
    "sk-ecdsa-sha2-nistp256@openssh.com": _with_application(_ecdsa(ec.SECP256R1(), "nistp256")),
}
"""The algorithms that are taken, each with what reads the rest of its blob."""
