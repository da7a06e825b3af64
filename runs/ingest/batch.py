"""One batch of a source's contents on its way into the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from runs.agent import frames
from runs.agent.frames import Event, Kind
from runs.chain import LINK_BYTES
from runs.ingest import meta as metas
from runs.ingest import rows
from runs.ingest.derived import MAX_OFFSET, UNPLACED_PROCESS, Derived, Loss
from runs.ingest.meta import INT64_MAX

LAST_SEQUENCE = INT64_MAX - 1
"""The highest sequence that a source may reach: one is kept for the end by the control plane."""

PIECE_BYTES = 128 * 1024
"""So many bytes are handed to ``COPY`` at once: the server stores while the next are made."""


@dataclass
class Batch:
    """Places contents behind a head and packs them as rows.

    ``sequence``, ``chain_head`` and ``source_ended`` start as the head has them and stand where the
    rows that were yielded end. What the head has already is passed over. ``refused`` says why
    contents from some place on cannot be part of the record; those before it are good.
    """

    run_number: int
    source_base: int
    process_base: int
    sequence: int
    chain_head: bytes
    source_ended: bool
    derived: Derived
    stored: int = 0
    sealed: Event | None = None
    refused: str = ""
    _pieces: list[bytes] = field(default_factory=list)

    def rows(self, contents: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the rows of the contents that are new, several rows at a time."""
        size = 0
        for content in contents:
            if self.sealed is not None:
                break
            try:
                event = self._placed(content)
            except frames.FrameError as exc:
                self.refused = str(exc)
                break
            if event is None:
                continue
            size += self._add(event, content)
            if size >= PIECE_BYTES:
                yield b"".join(self._pieces)
                self._pieces.clear()
                size = 0
        if self._pieces:
            yield b"".join(self._pieces)
            self._pieces.clear()

    def _placed(self, content: bytes) -> Event | None:
        """Return the event with the run's numbers; None when the head is past it.

        Raises ``FrameError`` when it has no place in any record.
        """
        event = frames.decode(content)
        sequence = event.sequence + self.source_base
        if sequence > LAST_SEQUENCE:
            raise frames.FrameError(f"the sequence {event.sequence} is out of range")
        if sequence <= self.sequence:
            return None
        process = event.process
        if process:
            # Every process takes an event of its own to start, so an honest number is never above
            # the sequence. A forged one must not pass for a process of another source.
            process += self.process_base
            if event.process > event.sequence or process > UNPLACED_PROCESS:
                process = UNPLACED_PROCESS
        if (
            sequence == event.sequence
            and process == event.process
            and event.offset <= MAX_OFFSET
            and event.monotonic_ns <= INT64_MAX
        ):
            return event
        return event._replace(
            sequence=sequence,
            process=process,
            offset=min(event.offset, MAX_OFFSET),
            monotonic_ns=min(event.monotonic_ns, INT64_MAX),
        )

    def _add(self, event: Event, content: bytes) -> int:
        sequence, wall_us, monotonic_ns, kind, method, confidence, process, stream, offset = event[
            :9
        ]
        meta, body = event.meta, event.body
        if sequence != self.sequence + 1:
            self._note_gap(sequence)
        # The content is hashed as it came when it carries the run's numbers already.
        header = frames.HEADER.pack(*event[:9], len(meta))
        if not content.startswith(header):
            content = b"".join((header, meta, body))
        head = sha256(self.chain_head + content).digest()
        length = len(body)
        self._pieces += (
            rows.FIXED.pack(
                14,
                8,
                self.run_number,
                8,
                sequence,
                8,
                offset,
                8,
                wall_us,
                8,
                monotonic_ns,
                4,
                process,
                4,
                length,
                2,
                kind,
                2,
                stream,
                2,
                method,
                2,
                confidence,
                LINK_BYTES,
                head[:LINK_BYTES],
                len(meta),
            ),
            meta,
            rows.BODY_LENGTH.pack(length),
            body,
        )
        self.chain_head = head
        self.sequence = sequence
        self.stored += 1
        if kind == Kind.IO_CHUNK:
            self.source_ended = False
            self.derived.reach(sequence, process, stream, offset, offset + length)
        else:
            self._take(event)
        return 128 + len(meta) + length

    def _take(self, event: Event) -> None:
        self.derived.take(event)
        if event.kind == Kind.RECORD_SEALED:
            self.sealed = event
        self.source_ended = event.kind == Kind.RECORD_SEALED or (
            event.kind == Kind.RUNTIME_STATE_CHANGED
            and isinstance(metas.read(event.meta).get("totals"), dict)
        )

    def _note_gap(self, sequence: int) -> None:
        missing = sequence - self.sequence - 1
        self.derived.losses.append(
            Loss(
                "sequence_gap",
                "gap",
                self.sequence + 1,
                sequence - 1,
                count=missing,
                reason="these events never arrived",
            )
        )
