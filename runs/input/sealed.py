"""What a one-shot run is given besides its command: sealed in its row until it has started.

The key is made of ``SVC_RECORD_SIGNING_KEY`` (HKDF, RFC 5869), which the processes have that make
and execute runs: ``SVC_CREDENTIALS_KEY`` would let the run worker open every connected account.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from controlplane.errors import ServiceUnavailable
from controlplane.security import crypto
from controlplane.security.crypto import SealError
from runs.record.seal import signing_key

_KEY_ID: Final = 0


@dataclass(frozen=True, slots=True)
class StartInput:
    """Environment variables and standard input of a run; ``stdin`` None: it reads nothing."""

    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None

    def __bool__(self) -> bool:
        """Whether anything was given."""
        return bool(self.env) or self.stdin is not None


def seal_input(given: StartInput, *, run_id: uuid.UUID) -> bytes | None:
    """Return what was given, sealed for the row of this run; None when nothing was.

    Raises ``ServiceUnavailable`` (``record-signing-key-unset``).
    """
    if not given:
        return None
    key = _key()
    if key is None:
        raise ServiceUnavailable(
            "This installation has no record signing key, and env and stdin are not stored "
            "without one.",
            code="record-signing-key-unset",
        )
    stdin = None if given.stdin is None else base64.b64encode(given.stdin).decode()
    content = json.dumps({"env": dict(given.env), "stdin": stdin}).encode()
    return crypto.seal(content, key=key, key_id=_KEY_ID, context=_context(run_id))


def open_input(sealed: bytes | memoryview | None, *, run_id: uuid.UUID) -> StartInput:
    """Return what was given; raises ``SealError`` unless it was sealed for this run and key."""
    if sealed is None:
        return StartInput()
    key = _key()
    if key is None:
        raise SealError("No record signing key is set.")
    content = crypto.unseal(bytes(sealed), keys={_KEY_ID: key}, context=_context(run_id))
    members = json.loads(content)
    stdin = members["stdin"]
    return StartInput(members["env"], None if stdin is None else base64.b64decode(stdin))


def _key() -> bytes | None:
    private = signing_key()
    if private is None:
        return None
    return HKDF(SHA256(), crypto.KEY_BYTES, salt=None, info=b"run input").derive(private)


def _context(run_id: uuid.UUID) -> str:
    return f"run-input:{run_id}"
