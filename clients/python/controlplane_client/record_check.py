"""Checking an exported record for tampering, without the service.

Every event is chained to the one before by SHA-256, and the end of the record is sealed with an
Ed25519 signature over where the chain leads, the first line and the loss lines. This is written
from the format alone and shares no code with the service. The signature needs the package
``cryptography`` (``pip install controlplane-client[verify]``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import uuid
from collections.abc import Iterable
from typing import Any

from controlplane_client.models import Verified

_FIRST = b"svc-run-record-v1\0"
_SIGNED = b"svc-run-seal-v1\0"
_HEADER = struct.Struct("!QqQHBBIBQI")
_RECORD_SEALED = 18
_MALFORMED = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What reading a line raises that is not as it was written."""


class _Fault(Exception):
    pass


def check_export(lines: Iterable[bytes], public_key: str | None = None) -> Verified:
    """Check the lines of an NDJSON export of a run.

    ``public_key`` is the installation's key in base64, as its operator publishes it; a record that
    has not ended has no seal that it could have signed, and is not ok then. Without it the key in
    the export is taken, which shows damage, but not who signed. Raises ``ValueError`` when the key
    itself is none, and nothing for whatever the lines hold.
    """
    key = None if public_key is None else _key(public_key)
    check = _Check()
    try:
        message, signed_by = check.all(lines, key)
    except _Fault as fault:
        return Verified(False, str(fault), check.events, "", False)
    except _MALFORMED:
        return Verified(False, f"line {check.line} was altered", check.events, "", False)
    return Verified(True, message, check.events, signed_by, bool(signed_by) and key is not None)


def _key(text: str) -> bytes:
    key = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), validate=True)
    if len(key) != 32:
        raise ValueError(f"a public key has 32 bytes, but this one has {len(key)}")
    return key


def _canonical(told: Any) -> bytes:
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


class _Check:
    """The walk over the lines of one export, in constant memory."""

    def __init__(self) -> None:
        self.line = 0
        self.events = 0
        self._sequence = 0
        self._ended = False
        self._holes: set[tuple[int, int]] = set()
        self._declared: set[tuple[int, int]] = set()
        self._losses = 0
        self._loss_digest = hashlib.sha256()

    def all(self, lines: Iterable[bytes], key: bytes | None) -> tuple[str, str]:
        last: dict[str, Any] | None = None
        header = b""
        for self.line, line in enumerate(lines, 1):
            told = json.loads(line)
            if _canonical(told) + b"\n" != line:
                raise _Fault(f"line {self.line} was altered")
            kind = told["type"]
            if last is not None:
                raise _Fault(f"line {self.line}: there is something after the last line")
            if self.line == 1:
                self._first(told)
                header = line
            elif kind == "event" and not self._losses:
                self._event(told)
            elif kind == "loss":
                self._loss(told, line)
            elif kind in {"seal", "open"}:
                last = told
            else:
                raise _Fault(f"line {self.line} does not belong here")
        if last is None:
            raise _Fault("the export ends without its last line")
        if self._holes != self._declared:
            first, end = sorted(self._holes ^ self._declared)[0]
            raise _Fault(f"events {first} to {end}: missing and not declared, or the reverse")
        if last["type"] == "open":
            return self._open(last, key)
        return self._seal(last, header, key)

    def _first(self, told: dict[str, Any]) -> None:
        if (told["type"], told.get("format"), told.get("version")) != (
            "record",
            "svc-run-record",
            1,
        ):
            raise _Fault("line 1 is not the first line of a known export")
        self._run = uuid.UUID(told["runId"])
        self._head = hashlib.sha256(_FIRST + self._run.bytes).digest()

    def _event(self, told: dict[str, Any]) -> None:
        sequence = int(told["sequence"])
        if sequence <= self._sequence or self._ended:
            raise _Fault(f"event {sequence} comes twice, out of order or after the end")
        body = base64.b64decode(told["body"], validate=True)
        coded = told.get("metaBase64")
        meta = told["meta"].encode() if coded is None else base64.b64decode(coded, validate=True)
        if told["length"] != len(body):
            raise _Fault(f"event {sequence}: its length is not that of its bytes")
        content = _HEADER.pack(
            sequence,
            int(told["wallUs"]),
            int(told["monotonicNs"]),
            told["kind"],
            told["method"],
            told["confidence"],
            told["process"],
            told["stream"],
            int(told["offset"]),
            len(meta),
        )
        head = hashlib.sha256(self._head + content + meta + body).digest()
        if head[:8].hex() != told["link"]:
            raise _Fault(f"event {sequence}: altered, or what came before it was")
        if sequence > self._sequence + 1:
            self._holes.add((self._sequence + 1, sequence - 1))
        self._head, self._sequence = head, sequence
        self.events += 1
        self._ended = told["kind"] == _RECORD_SEALED

    def _loss(self, told: dict[str, Any], line: bytes) -> None:
        self._losses += 1
        if told["position"] != self._losses:
            raise _Fault(f"loss span {self._losses} is missing")
        self._loss_digest.update(line)
        begin, end = told["fromSequence"], told["toSequence"]
        if told["kind"] == "sequence_gap" and None not in (begin, end):
            self._declared.add((int(begin), int(end)))

    def _open(self, told: dict[str, Any], key: bytes | None) -> tuple[str, str]:
        stands = (str(self._sequence), str(self.events), self._head.hex())
        if stands != (told["lastSequence"], told["events"], told["chainHead"]):
            raise _Fault("the events do not lead to the stated head of the record")
        if key is not None:
            # Whoever altered it may have taken the seal away and written the rest anew.
            raise _Fault("the record has no seal: the key cannot tell whether it was changed")
        return (
            f"{self.events} events are consistent; the record has not ended, so nothing is signed"
        ), ""

    def _seal(self, told: dict[str, Any], header: bytes, key: bytes | None) -> tuple[str, str]:
        text: bytes = told["seal"].encode()
        seal = json.loads(text)
        if _canonical(seal) != text or seal.get("version") != 1:
            raise _Fault("the seal was altered, or is of another version")
        wanted = {
            "runId": str(self._run),
            "headerDigest": hashlib.sha256(header).hexdigest(),
            "lastSequence": str(self._sequence),
            "events": str(self.events),
            "chainHead": self._head.hex(),
            "lossDigest": self._loss_digest.hexdigest(),
        }
        wrong = sorted(name for name, value in wanted.items() if seal.get(name) != value)
        if wrong or not self._ended:
            raise _Fault(f"not what was sealed: {', '.join(wrong) or 'the end is missing'}")
        return self._signature(told, text, key)

    def _signature(self, told: dict[str, Any], seal: bytes, key: bytes | None) -> tuple[str, str]:
        if told["signature"] is None:
            if key is not None or told["publicKey"] is not None:
                raise _Fault("the seal is not signed, but it should be")
            return (
                f"{self.events} events are consistent and match the seal, which is not signed"
            ), ""
        embedded = base64.b64decode(told["publicKey"], validate=True)
        if key is not None and key != embedded:
            raise _Fault(f"the seal was signed with another key: {told['keyId']}")
        name = hashlib.sha256(embedded).hexdigest()[:32]
        signature = base64.b64decode(told["signature"], validate=True)
        if name != told["keyId"] or not _signed(_SIGNED + seal, signature, embedded):
            raise _Fault("the signature does not match the seal")
        by = "" if key is not None else "; the owner of the key was not checked"
        return f"{self.events} events, complete and as sealed, signed with {name}{by}", name


def _signed(content: bytes, signature: bytes, key: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PublicKey,
        )
    except ImportError as error:
        raise ImportError(
            "checking a signature needs cryptography: pip install 'controlplane-client[verify]'"
        ) from error
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except InvalidSignature:
        return False
    return True
