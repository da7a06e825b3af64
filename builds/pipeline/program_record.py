"""One program of a build in the build's record: its output as it comes, masked, and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from builds.pipeline.source_writer import SourceWriter
from controlplane.subprocesses import ProcessResult
from runs.agent.masking.masker import Masker
from runs.agent.record.frames import STREAM_NAMES, Kind, Method, Stream

OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes of each stream of a program that are recorded; of the rest the record says how much."""
CHUNK_BYTES = 32 * 1024
SILENCE_SECONDS = 0.02
"""What may be the beginning of a secret is given out when nothing has followed for so long."""

_STREAMS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR}


class ProgramRecord:
    """One program of a build: its output as it comes, and its end."""

    def __init__(
        self, writer: SourceWriter, masker: Masker, number: int, streams: Sequence[str]
    ) -> None:
        self._writer = writer
        self._number = number
        self._began = time.monotonic()
        self._ended = False
        self._outputs = {name: _Output(writer, masker, number, _STREAMS[name]) for name in streams}

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take the next bytes of a stream; waits while the record takes none."""
        with self._writer.lock:
            for name, output in self._outputs.items():
                if name != stream:
                    output.give_out()  # so that the order of the streams stays as it was
            self._outputs[stream].feed(chunk)
        self._writer.wait_for_room()

    def ended(self, result: ProcessResult | None) -> None:
        """Tell how the program ended; None: nobody knows. Only the first call counts."""
        if result is None:
            self.exited(None, None, "lost")
        elif result.timed_out or result.cancelled:
            reason = "timeout" if result.timed_out else "cancelled"
            self.exited(result.exit_code, result.signal, reason)
        else:
            reason = "signaled" if result.signal else "exited"
            self.exited(result.exit_code, result.signal, reason)

    def not_started(self) -> None:
        """Tell that the program never ran."""
        self.exited(None, None, "startFailed")

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Tell how the program ended, in the words of ``processExited``."""
        with self._writer.lock:
            if self._ended:
                return
            self._ended = True
            for output in self._outputs.values():
                output.close()
            microseconds = round((time.monotonic() - self._began) * 1e6)
            told = {"code": code, "signal": signal, "reason": reason, "durationUs": microseconds}
            self._writer.event(Kind.PROCESS_EXITED, told, process=self._number, method=Method.PIPE)

    def tick(self) -> None:
        """Give out what waited long enough."""
        if not self._ended:
            for output in self._outputs.values():
                output.tick()

    def totals(self) -> list[dict[str, Any]]:
        """Return the program's members of ``totals``."""
        return [output.total() for output in self._outputs.values()]


class _Output:
    """One stream: masked, gathered to chunks, recorded up to the limit. Called with the lock."""

    def __init__(self, writer: SourceWriter, masker: Masker, process: int, stream: int) -> None:
        self._writer = writer
        self._masking = masker.stream()
        self._process = process
        self._stream = stream
        self._chunk = bytearray()
        self._masked: list[list[int]] = []
        self._began_us = 0
        self._fed_at = 0.0
        self._recorded = 0
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        self._fed_at = time.monotonic()
        self._take(*self._masking.feed(data))

    def tick(self) -> None:
        if self._masking.held and time.monotonic() - self._fed_at >= SILENCE_SECONDS:
            self._take(*self._masking.flush())
        self.give_out()

    def _take(self, data: bytes, masked: Sequence[tuple[int, int]]) -> None:
        self._bytes += len(data)
        room = OUTPUT_LIMIT - self._recorded - len(self._chunk)
        data = data[: max(0, room)]
        if not data:
            return
        if not self._chunk:
            self._began_us = time.time_ns() // 1000
        self._chunk += data
        self._masked += [
            [start, min(end, OUTPUT_LIMIT)] for start, end in masked if start < OUTPUT_LIMIT
        ]
        if len(self._chunk) >= CHUNK_BYTES:
            self.give_out()

    def give_out(self) -> None:
        if not self._chunk:
            return
        self._writer.event(
            Kind.IO_CHUNK,
            {"masked": self._masked} if self._masked else None,
            process=self._process,
            stream=self._stream,
            offset=self._recorded,
            body=bytes(self._chunk),
            method=Method.PIPE,
            wall_us=self._began_us,
        )
        self._recorded += len(self._chunk)
        self._chunk.clear()
        self._masked = []

    def close(self) -> None:
        self._take(*self._masking.flush())
        self.give_out()
        if self._bytes > self._recorded:
            dropped = self._bytes - self._recorded
            self._tell(
                Kind.TELEMETRY_DROPPED,
                self._recorded,
                {"toOffset": self._bytes, "bytes": dropped, "reason": "output-limit"},
            )
        self._tell(Kind.PROCESS_STREAM_CLOSED, self._bytes, {"reason": "eof"})

    def _tell(self, kind: int, offset: int, meta: dict[str, Any]) -> None:
        self._writer.event(kind, meta, process=self._process, stream=self._stream, offset=offset)

    def total(self) -> dict[str, Any]:
        return {
            "process": self._process,
            "stream": STREAM_NAMES[self._stream],
            "bytes": self._bytes,
            "dropped": self._bytes - self._recorded,
        }
