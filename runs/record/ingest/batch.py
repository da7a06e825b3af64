"""One batch of a source's contents on its way into the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from runs.agent.record import frames
from runs.agent.record.frames import HEADER, Event, Kind
from runs.record import chain
from runs.record.ingest import meta as metas
from runs.record.ingest import new_rows as rows
from runs.record.ingest.derived import MAX_OFFSET, UNPLACED_PROCESS, Derived, Loss
from runs.record.ingest.meta import INT64_MAX

LAST_SEQUENCE = INT64_MAX - 1 - 2**40
"""The highest sequence that a source may reach: what follows is kept for events of the control
plane, the last one for the end."""

PIECE_BYTES = 128 * 1024
"""So many bytes are handed to ``COPY`` at once: the server stores while the next are made."""


@dataclass
class Batch:
    """Slots contents behind a head and packs them as rows.

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
    last_sequence: int = LAST_SEQUENCE
    is_own: bool = False
    """Of the control plane: only it tells what the egress proxy has decided."""
    stored: int = 0
    stored_bytes: int = 0
    sealed: Event | None = None
    refused: str = ""
    _pieces: list[bytes] = field(default_factory=list)

    def rows(self, contents: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the rows of the contents that are new, several rows at a time."""
        size = 0
        for content in contents:
            if self._add_next_chunk(content):
                size += len(content)
            else:
                try:
                    event = self._placed(content)
                except frames.FrameError as exc:
                    self.refused = str(exc)
                    break
                if event is None:
                    continue
                self._add(event)
                size += len(content)
                if self.sealed is not None:
                    break
            if size >= PIECE_BYTES:
                self.stored_bytes += size
                yield b"".join(self._pieces)
                self._pieces.clear()
                size = 0
        if self._pieces:
            self.stored_bytes += size
            yield b"".join(self._pieces)
            self._pieces.clear()

    def _add_next_chunk(self, content: bytes) -> bool:
        """Add what nearly every content is: the I/O chunk that comes next, with the run's numbers.

        False, and nothing done, when it is anything else. Does for it what :meth:`_add` does, in a
        fifth of the time: no event is made, nothing is packed twice.
        """
        if len(content) < HEADER.size or self.source_base or self.process_base:
            return False
        (
            sequence,
            wall_us,
            monotonic_ns,
            kind,
            method,
            confidence,
            process,
            stream,
            offset,
            meta_length,
        ) = HEADER.unpack_from(content)
        if (
            kind != Kind.IO_CHUNK
            or meta_length
            or sequence != self.sequence + 1
            or sequence > self.last_sequence
            or process > sequence
            or process >= UNPLACED_PROCESS
            or offset > MAX_OFFSET
            or monotonic_ns > INT64_MAX
        ):
            return False
        body = content[HEADER.size :]
        length = len(body)
        head = self.chain_head = sha256(self.chain_head + content).digest()
        self._pieces += (
            rows.pack_without_meta(
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
                chain.LINK_BYTES,
                head,
                0,
                length,
            ),
            body,
        )
        self.sequence = sequence
        self.stored += 1
        self.source_ended = False
        streams, key = self.derived.streams, f"{process}/{stream}"
        if streams.get(key) == offset:
            streams[key] = offset + length
        else:
            self.derived.reach(sequence, process, stream, offset, offset + length)
        return True

    def _placed(self, content: bytes) -> Event | None:
        """Return the event with the run's numbers; None when the head is past it.

        Raises ``FrameError`` when it has no place in any record.
        """
        event = frames.decode(content)
        if event.kind == Kind.EGRESS_DECIDED and not self.is_own:
            raise frames.FrameError("a source tells of decisions that are not its own")
        sequence = event.sequence + self.source_base
        if sequence > self.last_sequence:
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
        return event._replace(
            sequence=sequence,
            process=process,
            offset=min(event.offset, MAX_OFFSET),
            monotonic_ns=min(event.monotonic_ns, INT64_MAX),
        )

    def _add(self, event: Event) -> None:
        if event.sequence != self.sequence + 1:
            self._note_gap(event.sequence)
        head = self.chain_head = chain.advance(self.chain_head, frames.content_of(event))
        length = len(event.body)
        self._pieces += (
            rows.pack_fixed(
                14,
                8,
                self.run_number,
                8,
                event.sequence,
                8,
                event.offset,
                8,
                event.wall_us,
                8,
                event.monotonic_ns,
                4,
                event.process,
                4,
                length,
                2,
                event.kind,
                2,
                event.stream,
                2,
                event.method,
                2,
                event.confidence,
                chain.LINK_BYTES,
                head,
                len(event.meta),
            ),
            event.meta,
            rows.pack_length(length),
            event.body,
        )
        self.sequence = event.sequence
        self.stored += 1
        self.source_ended = False
        if event.kind == Kind.IO_CHUNK:
            end = event.offset + length
            self.derived.reach(event.sequence, event.process, event.stream, event.offset, end)
        else:
            self._take(event)

    def _take(self, event: Event) -> None:
        self.derived.take(event)
        if event.kind == Kind.RECORD_SEALED:
            self.sealed = event
            self.source_ended = True
        elif event.kind == Kind.RUNTIME_STATE_CHANGED:
            self.source_ended = isinstance(metas.read(event.meta).get("totals"), dict)

    def _note_gap(self, sequence: int) -> None:
        self.derived.losses.append(
            Loss(
                "sequence_gap",
                "gap",
                self.sequence + 1,
                sequence - 1,
                count=sequence - 1 - self.sequence,
                reason="these events never arrived",
            )
        )
