"""Checking a record, whether it comes from the database or from an export.

Both walk over the events with :class:`Walk`, and hold what they find against the seal with
:func:`check_seal`. Needs neither Django nor a database.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runs.agent.record.frames import Kind
from runs.record import chain, signatures
from runs.record.export_format import EventRow, loss_digest, row_content


class Fault(Exception):
    """Something does not fit. ``sequence``: the first event that is wrong, where that is known."""

    def __init__(self, sequence: int | None, message: str) -> None:
        where = f"event {sequence}: " if sequence is not None else ""
        super().__init__(where + message)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found. ``signed_by``: the id of the key whose signature fits."""

    ok: bool
    first_bad: int | None
    message: str
    signed_by: str = ""


class Walk:
    """Follows the chain over the events of one run, in order."""

    def __init__(self, run_id: uuid.UUID) -> None:
        self.run_id = run_id
        self.head = chain.genesis(run_id)
        self.sequence = 0
        self.events = 0
        self.ended = False
        self._holes: list[tuple[int, int]] = []

    def step(self, row: EventRow) -> None:
        """Take the next event; raises ``Fault`` when it does not follow the last one."""
        expected = self.sequence + 1
        if row.sequence < expected:
            raise Fault(row.sequence, "comes twice or out of order")
        if self.ended:
            raise Fault(row.sequence, "comes after the end of the record")
        if row.length != len(row.body):
            raise Fault(row.sequence, "its length is not that of its bytes")
        head = chain.advance(self.head, row_content(row))
        if chain.link(head) != bytes(row.link):
            if row.sequence > expected:
                raise Fault(expected, f"missing up to {row.sequence - 1}, or altered")
            raise Fault(
                row.sequence, "this event or the one before it was altered: the chain breaks here"
            )
        if row.sequence > expected:
            self._holes.append((expected, row.sequence - 1))
        self.head, self.sequence = head, row.sequence
        self.events += 1
        self.ended = row.kind == Kind.RECORD_SEALED

    def finish(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Hold the holes in the numbers against the declared ones; raises ``Fault``."""
        undeclared = sorted(set(self._holes) - set(gaps))
        if undeclared:
            first, last = undeclared[0]
            raise Fault(first, f"missing up to {last}, and no loss span declares it")
        strays = sorted(set(gaps) - set(self._holes))
        if strays:
            raise Fault(strays[0][0], "a loss span declares it missing, but it is present")


def check_seal(
    walk: Walk,
    *,
    header: bytes,
    losses: Iterable[bytes],
    seal: bytes,
    signature: bytes | None,
    embedded_key: bytes | None,
    key_id: str,
    public_key: bytes | None,
) -> Checked:
    """Hold the events and loss lines against the seal, and the seal against its signature.

    ``public_key`` is the one that has to have signed; without one, the key that came with the seal
    is taken, and the answer says so. Raises ``Fault``.
    """
    told = _seal(seal)
    if told.get("runId") != str(walk.run_id):
        raise Fault(None, "the seal is that of another run")
    if told.get("headerDigest") != hashlib.sha256(header).hexdigest():
        raise Fault(None, "the description of the run differs from what was sealed")
    stands = (str(walk.sequence), str(walk.events), walk.head.hex())
    if stands != (told.get("lastSequence"), told.get("events"), told.get("chainHead")):
        if str(walk.sequence) != told.get("lastSequence"):
            raise Fault(
                walk.sequence + 1, f"missing: the record goes to {told.get('lastSequence')}"
            )
        raise Fault(walk.sequence, "the chain does not end where it was sealed")
    if not walk.ended:
        raise Fault(walk.sequence, "the record has a seal but does not end with recordSealed")
    if told.get("lossDigest") != loss_digest(losses):
        raise Fault(None, "the loss spans differ from those that were sealed")
    key = public_key or embedded_key
    if signature is None or key is None:
        if public_key is not None or signature is not None or embedded_key is not None or key_id:
            raise Fault(None, "the seal is not signed, but it should be")
        return Checked(
            True,
            None,
            f"{walk.events} events are consistent and match the seal, which is not signed",
        )
    if embedded_key is not None and embedded_key != key:
        raise Fault(None, f"the seal was signed with another key: {key_id or 'unnamed'}")
    name = signatures.key_id(key)
    if name != key_id or not signatures.signed_by(seal, signature, public=key):
        raise Fault(None, "the signature does not match the seal")
    by = "" if public_key is not None else "; the owner of the key was not checked"
    return Checked(
        True, None, f"{walk.events} events, complete and as sealed, signed with {name}{by}", name
    )


def _seal(seal: bytes) -> dict[str, object]:
    try:
        told = json.loads(seal)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or signatures.canonical(told) != seal:
        raise Fault(None, "the seal was altered")
    if told.get("version") != signatures.SEAL_VERSION:
        raise Fault(None, "a seal of an unsupported version")
    return told
