"""What a builder prints: handed on as it comes, and read for its end and the step that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from controlplane.security.redaction import Redactor
from controlplane.subprocesses import ProcessResult, Tail

_STEP = re.compile(rb"#(\d+) (\[.*\] .+)")
_STEP_FAILED = re.compile(rb"#(\d+) ERROR\b")
_CLASSIC_STEP = re.compile(rb"Step \d+/\d+ : (.+)")
_LONGEST_LINE = 4096
_LONGEST_NAME = 200


class ProgramOutput(Protocol):
    """Takes what one program prints, and how it ends."""

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take the next bytes of ``stdout`` or ``stderr``; what it raises ends the program."""

    def ended(self, result: ProcessResult | None) -> None:
        """Take how it ended; None when that is not known."""

    def not_started(self) -> None:
        """Take that it never ran."""


class ProgramLog(Protocol):
    """Takes what the programs of a build print, as they print it."""

    def started(self, name: str, argv: Sequence[str]) -> ProgramOutput:
        """Take notice of a program that is started now."""


class BuildOutput:
    """Reads what a builder prints: its redacted end, and the step that failed.

    ``step`` is the one that is carried out until the output says another.
    """

    def __init__(self, secrets: Iterable[str], tail_limit: int, step: str = "") -> None:
        self._redactor = Redactor(secrets)
        self._kept = Tail(tail_limit)
        self._line = b""
        self._steps: dict[bytes, bytes] = {}
        self._failed = b""
        self._classic = step.encode()

    @property
    def failed_step(self) -> str:
        """The step that failed, as far as the builder said; of a classic build the last one."""
        return (self._failed or self._classic).decode("utf-8", "replace")[:_LONGEST_NAME]

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of output."""
        self._take(self._redactor.feed(chunk))

    def close(self) -> None:
        """Take what was held back; the output is over."""
        self._take(self._redactor.flush())

    def tail(self) -> bytes:
        """Return the end of the redacted output."""
        return self._kept.bytes()

    def _take(self, clean: bytes) -> None:
        if clean:
            self._kept.feed(clean)
            self._read_lines(clean)

    def _read_lines(self, clean: bytes) -> None:
        *lines, rest = (self._line + clean).split(b"\n")
        self._line = rest[:_LONGEST_LINE]
        for line in lines:
            if match := _STEP.match(line[:_LONGEST_LINE]):
                self._steps.setdefault(match[1], match[2].strip())
            elif match := _STEP_FAILED.match(line):
                self._failed = self._steps.get(match[1], self._failed)
            elif match := _CLASSIC_STEP.match(line[:_LONGEST_LINE]):
                self._classic = match[1].strip()
