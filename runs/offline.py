"""``python -m runs.offline EXPORT``: check an exported record with nothing but a public key.

Needs neither Django nor a database. Ends with 0 when the record is whole and as it was written,
with 1 when it is not, and names the first event (or line) that does not fit. Without
``--public-key`` the signature is held against the key in the export itself, which shows damage but
not who signed. With it a record without a signed seal, such as one that goes on, ends with 1.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runs.record import signatures
from runs.record.checking import Checked, Fault, Walk, check_seal
from runs.record.export_format import (
    FORMAT,
    VERSION,
    EventRow,
    event_line,
    header_line,
    loss_line,
    seal_line,
)


def verify(lines: Iterable[bytes], *, public_key: bytes | None = None) -> Checked:
    """Check the lines of an export; ``public_key`` is the one that has to have signed it.

    Never raises for what the lines hold: what does not fit is in the answer.
    """
    try:
        return _Export(lines).check(public_key)
    except Fault as exc:
        return Checked(False, exc.sequence, str(exc))


class _Export:
    """The lines of one export, read once, in constant memory but for the loss spans."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self._number = 0
        self._losses: list[bytes] = []
        self._gaps: list[tuple[int, int]] = []

    def check(self, public_key: bytes | None) -> Checked:
        """Return what is to be said of the record; raises ``Fault``."""
        header = self._header()
        walk = Walk(uuid.UUID(header["runId"]))
        last: dict[str, Any] | None = None
        for told, line in self._told():
            kind = told.get("type")
            if last is not None:
                raise self._fault("there is something after the last line", walk)
            if kind == "event" and not self._losses:
                walk.step(self._event(told, line, walk))
            elif kind == "loss":
                self._loss(told, line, walk)
            elif kind in ("seal", "open"):
                last = self._last(told, line, walk)
            else:
                raise self._fault("an unexpected line", walk)
        if last is None:
            raise Fault(walk.sequence + 1, "the export ends without its last line")
        walk.finish(self._gaps)
        if last["type"] == "open":
            return self._open(last, walk, public_key)
        return check_seal(
            walk,
            header=self._header_line,
            losses=self._losses,
            seal=last["seal"].encode(),
            signature=_bytes(last["signature"]),
            embedded_key=_bytes(last["publicKey"]),
            key_id=last["keyId"] or "",
            public_key=public_key,
        )

    def _told(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        for number, line in self._lines:
            self._number = number
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                told = None
            if not isinstance(told, dict):
                raise Fault(None, f"line {self._number} is not a JSON object")
            yield told, line

    def _fault(self, message: str, walk: Walk) -> Fault:
        return Fault(walk.sequence + 1, f"line {self._number}: {message}")

    def _header(self) -> dict[str, Any]:
        told, line = next(self._told(), ({}, b""))
        if told.get("type") != "record" or told.get("format") != FORMAT:
            raise Fault(None, "line 1 is not the first line of an export")
        if told.get("version") != VERSION:
            raise Fault(None, "an export of an unsupported version")
        try:
            run = SimpleNamespace(
                id=uuid.UUID(told["runId"]),
                workspace_id=uuid.UUID(told["workspaceId"]),
                mode=told["mode"],
                harness_id=told["harnessId"],
                created_at=_moment(told["createdAt"]),
            )
            again = header_line(run)
        except _MALFORMED:
            again = b""
        if again != line:
            raise Fault(None, "line 1 was altered")
        self._header_line = line
        return told

    def _event(self, told: dict[str, Any], line: bytes, walk: Walk) -> EventRow:
        try:
            row = EventRow(
                int(told["sequence"]),
                int(told["offset"]),
                int(told["wallUs"]),
                int(told["monotonicNs"]),
                told["process"],
                told["length"],
                told["kind"],
                told["stream"],
                told["method"],
                told["confidence"],
                bytes.fromhex(told["link"]),
                told["meta"].encode() if "meta" in told else base64.b64decode(told["metaBase64"]),
                base64.b64decode(told["body"]),
            )
            again = event_line(row)
        except _MALFORMED:
            again = b""
        if again != line:
            raise self._fault("the event was altered", walk)
        return row

    def _loss(self, told: dict[str, Any], line: bytes, walk: Walk) -> None:
        try:
            loss = SimpleNamespace(
                position=told["position"],
                kind=told["kind"],
                from_sequence=_optional(told["fromSequence"]),
                to_sequence=_optional(told["toSequence"]),
                process_number=told["process"],
                stream=told["stream"],
                from_offset=_optional(told["fromOffset"]),
                to_offset=_optional(told["toOffset"]),
                count=_optional(told["count"]),
                reason=told["reason"],
                detected_via=told["detectedVia"],
                detected_at=_moment(told["detectedAt"]),
            )
            again = loss_line(loss)
        except _MALFORMED:
            again = b""
        if again != line:
            raise self._fault("the loss span was altered", walk)
        if loss.position != len(self._losses) + 1:
            raise self._fault(f"loss span {len(self._losses) + 1} is missing", walk)
        self._losses.append(line)
        if loss.kind == "sequence_gap" and None not in (loss.from_sequence, loss.to_sequence):
            self._gaps.append((loss.from_sequence, loss.to_sequence))

    def _last(self, told: dict[str, Any], line: bytes, walk: Walk) -> dict[str, Any]:
        try:
            if told["type"] == "open":
                head = SimpleNamespace(
                    seal=None,
                    last_sequence=int(told["lastSequence"]),
                    event_count=int(told["events"]),
                    chain_head=bytes.fromhex(told["chainHead"]),
                )
            else:
                head = SimpleNamespace(
                    seal=told["seal"].encode(),
                    signature=_bytes(told["signature"]),
                    public_key=_bytes(told["publicKey"]),
                    key_id=told["keyId"] or "",
                )
            again = seal_line(head)
        except _MALFORMED:
            again = b""
        if again != line:
            raise self._fault("the last line was altered", walk)
        return told

    def _open(self, told: dict[str, Any], walk: Walk, public_key: bytes | None) -> Checked:
        stands = (int(told["lastSequence"]), int(told["events"]), told["chainHead"])
        if stands != (walk.sequence, walk.events, walk.head.hex()):
            raise Fault(
                walk.sequence + 1, "the events do not lead to the stated head of the record"
            )
        if public_key is not None:
            # Whoever altered it may have taken the seal away and written the rest anew.
            raise Fault(None, "the record has no seal: the key cannot tell whether it was changed")
        return Checked(
            True,
            None,
            f"{walk.events} events are consistent; the record had not ended, so nothing is signed",
        )


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def _optional(told: str | None) -> int | None:
    return None if told is None else int(told)


def _bytes(told: str | None) -> bytes | None:
    return None if told is None else base64.b64decode(told)


def _moment(told: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(told)


def main(arguments: list[str] | None = None) -> int:
    """Check the export that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m runs.offline", description=__doc__)
    parser.add_argument("export", help="the NDJSON export of a run; - reads standard input")
    parser.add_argument("--public-key", help="base64, as `manage.py recordkey` prints it")
    options = parser.parse_args(arguments)
    key = None
    if options.public_key:
        try:
            key = signatures.decode_key(options.public_key)
        except ValueError as exc:
            parser.error(f"--public-key: {exc}")
    if options.export == "-":
        checked = verify(sys.stdin.buffer, public_key=key)
    else:
        try:
            with Path(options.export).open("rb") as lines:
                checked = verify(lines, public_key=key)
        except OSError as exc:
            parser.error(str(exc))
    sys.stdout.write(checked.message + "\n")
    return 0 if checked.ok else 1


if __name__ == "__main__":
    sys.exit(main())
