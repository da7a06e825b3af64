"""A record as a file: a terminal recording, the plain text of it, or all of it line by line.

``asciicast`` is version 3 or 2 of asciinema's format, for every run that has output. What a
terminal showed is given as it was; output of pipes is merged in the order of the record, with
``\\n`` as a terminal would show it. Where bytes are missing a marker says so. ``ndjson`` is the
whole record, which ``runs.offline`` can check.
"""

from __future__ import annotations

import codecs
import json
import re
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from runs.agent.record.frames import STREAM_NAMES, Kind, Stream
from runs.models import Run, RunHead, RunLoss, RunProcess
from runs.record import export_format
from runs.record.export_format import EventRow
from runs.record.ingest import meta as metas
from runs.record.reading.log import events
from runs.record.reading.rows import fetch

CONTENT_TYPES = {
    "asciicast": "application/x-asciicast",
    "text": "text/plain; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "in-toto": "application/vnd.dsse.envelope.v1+json",
    "ocsf": "application/x-ndjson",
    "otlp": "application/json",
}
COLUMNS, ROWS = 100, 24
MAX_CELLS = 10_000
TITLE_LENGTH = 200
ASCIICAST_VERSIONS = [2, 3]
OUTPUT = frozenset({Stream.STDOUT, Stream.STDERR, Stream.PTY_OUTPUT})

_SIGNALS = {each.name: each.value for each in signal.Signals}
_FIRST_SIZE = f"""
    SELECT meta FROM run_event
    WHERE run_number = %(run)s AND kind = {Kind.TERMINAL_RESIZED} AND kind <> {Kind.IO_CHUNK}
        AND process_number = ANY(%(processes)s)
    ORDER BY sequence LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a run showed, or was given, at a moment: by asciicast's codes:

    ``o`` output, ``i`` input, ``r`` resize, ``m`` marker, ``x`` the exit code.
    """

    seconds: float
    code: str
    text: str
    terminal: bool


def processes(run: Run, number: int | None = None) -> list[RunProcess]:
    """Return one process, or those that were started on purpose, in order."""
    rows = RunProcess.objects.filter(run_number=run.number)
    rows = rows.filter(leader=True) if number is None else rows.filter(process_number=number)
    return list(rows.order_by("process_number"))


def asciicast(
    run: Run, head: RunHead, chosen: Collection[RunProcess], *, version: int, with_input: bool
) -> Iterator[bytes]:
    """Yield the lines of a recording; of a run without output, the header alone.

    Version 2 has times since the start. Version 3 has times since the line before, in whole
    microseconds, so that they add up to the same, and the exit code of a single process.
    """
    numbers = [process.process_number for process in chosen]
    yield _line(_cast_header(run, chosen, _first_size(run, numbers), version))
    streams = OUTPUT | {Stream.STDIN, Stream.PTY_INPUT} if with_input else OUTPUT
    player = _Player(run, frozenset(numbers), streams)
    before = 0
    for piece in player.pieces(head.last_sequence):
        text = piece.text
        if piece.code == "o" and not piece.terminal:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        now = round(piece.seconds * 1_000_000)
        yield _line([(now if version == 2 else now - before) / 1_000_000, piece.code, text])
        before = now
    if version != 2 and player.exit_code is not None:
        after = round(player.seconds * 1_000_000) - before
        yield _line([after / 1_000_000, "x", str(player.exit_code)])


def _cast_header(
    run: Run, chosen: Collection[RunProcess], size: tuple[int, int], version: int
) -> dict[str, Any]:
    columns, rows = size
    title = " ".join([run.harness_id, *_argv(chosen)])[:TITLE_LENGTH]
    terminal: dict[str, Any] = {"width": columns, "height": rows}
    if version != 2:
        terminal = {"term": {"cols": columns, "rows": rows}}
    header: dict[str, Any] = {"version": version, **terminal, "title": title}
    if run.started_at is not None:
        header["timestamp"] = int(run.started_at.timestamp())
    return header


def plain_text(run: Run, head: RunHead, chosen: Collection[RunProcess]) -> Iterator[bytes]:
    """Yield the output without escape sequences; missing bytes are named in a line of their own."""
    numbers = frozenset(process.process_number for process in chosen)
    cleaner = _Cleaner()
    for piece in _Player(run, numbers, OUTPUT).pieces(head.last_sequence):
        if piece.code == "o":
            yield cleaner.feed(piece.text).encode()
        elif piece.code == "m":
            yield f"\n[{piece.text}]\n".encode()
    yield cleaner.flush().encode()


def ndjson(run: Run, head: RunHead) -> Iterator[bytes]:
    """Yield the lines of the record as it stood at ``head`` (``runs.record.export_format``)."""
    yield export_format.header_line(run)
    for row in events(run.number, last=head.last_sequence):
        yield export_format.event_line(row)
    losses = RunLoss.objects.filter(run_number=run.number, position__lte=head.loss_count)
    for span in losses.order_by("position").iterator():
        yield export_format.loss_line(span)
    yield export_format.seal_line(head)


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _argv(chosen: Collection[RunProcess]) -> list[str]:
    return next((list(process.argv) for process in chosen if process.argv), [])


def _first_size(run: Run, numbers: list[int]) -> tuple[int, int]:
    for (meta,) in fetch(_FIRST_SIZE, {"run": run.number, "processes": numbers}):
        size = _size(meta)
        if size is not None:
            return size
    return COLUMNS, ROWS


def _size(meta: bytes) -> tuple[int, int] | None:
    told = metas.read(meta)
    columns = metas.integer(told.get("columns"), high=MAX_CELLS)
    rows = metas.integer(told.get("rows"), high=MAX_CELLS)
    return (columns, rows) if columns and rows else None


def exit_code(meta: bytes) -> int | None:
    """Return the exit code as a shell gives it; None when the meta tells none."""
    told = metas.read(meta)
    number = _SIGNALS.get(metas.text(told.get("signal"), 16))
    return metas.integer(told.get("code"), high=255) if number is None else 128 + number


@dataclass(slots=True)
class _Player:
    """Turns the chunks of some processes into text with times.

    Times never go back. A boot run is recorded on several machines one after the other, whose
    monotonic clocks have nothing in common; its times are the wall clock's.
    """

    run: Run
    processes: frozenset[int]
    streams: Collection[int]
    decoders: dict[tuple[int, int], codecs.IncrementalDecoder] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    start: int | None = None
    seconds: float = 0.0
    exit_code: int | None = None
    """That of the only process, as a shell gives it; None while it has not ended."""

    def pieces(self, last: int) -> Iterator[Piece]:
        kinds = {Kind.RECORD_STARTED, Kind.IO_CHUNK, Kind.TERMINAL_RESIZED}
        kinds |= {Kind.PROCESS_STREAM_CLOSED, Kind.PROCESS_EXITED}
        sized = False
        for row in events(self.run.number, last=last, kinds=kinds):
            self._advance(row)
            if row.process_number not in self.processes:
                continue
            if row.kind == Kind.TERMINAL_RESIZED:
                size = _size(row.meta)
                if size and sized:
                    yield Piece(self.seconds, "r", f"{size[0]}x{size[1]}", True)
                sized = sized or size is not None  # the first one is in the header
            elif row.kind == Kind.PROCESS_EXITED:
                self.exit_code = exit_code(row.meta) if len(self.processes) == 1 else None
            elif row.stream in self.streams:
                yield from self._stream(row)

    def _advance(self, row: EventRow) -> None:
        boot = self.run.mode == Run.Mode.BOOT
        now = row.wall_us * 1000 if boot else row.monotonic_ns
        if self.start is None:
            self.start = now
        self.seconds = max(self.seconds, (now - self.start) / 1e9)

    def _stream(self, row: EventRow) -> Iterator[Piece]:
        place = (row.process_number, row.stream)
        terminal = row.stream in (Stream.PTY_INPUT, Stream.PTY_OUTPUT)
        code = "i" if row.stream in (Stream.STDIN, Stream.PTY_INPUT) else "o"
        gone = row.stream_offset - self.ends.get(place, 0)
        decoder = self.decoders.setdefault(place, codecs.getincrementaldecoder("utf-8")("replace"))
        ends_here = row.kind == Kind.PROCESS_STREAM_CLOSED
        text = decoder.decode(b"", True) if gone > 0 or ends_here else ""
        if gone > 0 and code == "o":
            if text:
                yield Piece(self.seconds, code, text, terminal)
                text = ""
            name = STREAM_NAMES[row.stream]
            yield Piece(self.seconds, "m", f"{gone} bytes of {name} are missing", terminal)
        self.ends[place] = max(self.ends.get(place, 0), row.stream_offset + row.length)
        text += decoder.decode(row.body)
        if text:
            yield Piece(self.seconds, code, text, terminal)


class _Cleaner:
    """Takes the escape sequences of terminals out of text that comes in pieces."""

    _SEQUENCE = re.compile(
        r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
        r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links
        r"|\x1b[ -/]+[0-~]"
        r"|\x1b[0-OQ-WYZ\\`-~]"
        r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]"
    )
    _HELD = 4_096

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> str:
        """Return what is clean for certain."""
        text = self._SEQUENCE.sub("", self._rest + text)
        begun = text.find("\x1b")
        if begun < 0 and text.endswith("\r"):
            begun = len(text) - 1
        if begun >= 0 and len(text) - begun > self._HELD:
            begun = -1  # no sequence is that long: it is an escape character and text
        self._rest = text[begun:] if begun >= 0 else ""
        return self._clean(text[:begun] if begun >= 0 else text)

    def flush(self) -> str:
        """Return the rest."""
        rest, self._rest = self._rest, ""
        return self._clean(rest)

    @staticmethod
    def _clean(text: str) -> str:
        return text.replace("\x1b", "").replace("\r\n", "\n")
