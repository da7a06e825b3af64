"""The app's own token: a JWT that says which app asks (RFC 7519, signed with RS256)."""

from __future__ import annotations

import base64
import json
import time

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_BACKDATED = 60
"""Seconds; the provider's clock may be behind ours."""
_LIFETIME = 540
"""Seconds from now. The provider takes ten minutes at the most, by its own clock."""


class AppKey:
    """Signs for the app ``app_id``; ``repr`` shows nothing of the key."""

    def __init__(self, app_id: str, private_key: str) -> None:
        self._app_id = app_id
        key = load_pem_private_key(private_key.encode(), password=None)
        assert isinstance(key, RSAPrivateKey)  # the settings took no other
        self._key = key

    def token(self, *, now: float | None = None) -> str:
        """Return a token that is good for some minutes from ``now``, in seconds of the epoch."""
        moment = int(time.time() if now is None else now)
        claims = {"iat": moment - _BACKDATED, "exp": moment + _LIFETIME, "iss": self._app_id}
        signed = f"{_encoded({'alg': 'RS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"


def _encoded(part: dict[str, object]) -> str:
    return _base64url(json.dumps(part, separators=(",", ":")).encode())


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
