"""What a builder prints: redacted, bounded, and read for the step that failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from controlplane.processes import Tail
from controlplane.redaction import Redactor

_STEP = re.compile(rb"#(\d+) (\[.*\] .+)")
_STEP_FAILED = re.compile(rb"#(\d+) ERROR\b")
_CLASSIC_STEP = re.compile(rb"Step \d+/\d+ : (.+)")
_LONGEST_LINE = 4096
_LONGEST_NAME = 200


class BuildOutput:
    """Hands redacted output on up to a limit and keeps its end.

    What exceeds ``limit`` bytes is not handed on, which the output itself says once; the end that
    is kept for an error message goes on.
    """

    def __init__(
        self,
        output: Callable[[bytes], None],
        secrets: Iterable[str],
        limit: int,
        tail_limit: int,
    ) -> None:
        self._output = output
        self._redactor = Redactor(secrets)
        self._left = limit
        self._limit = limit
        self._kept = Tail(tail_limit)
        self._line = b""
        self._steps: dict[bytes, bytes] = {}
        self._failed = b""
        self._classic = b""

    @property
    def failed_step(self) -> str:
        """The step that failed, as far as the builder said; of a classic build the last one."""
        return (self._failed or self._classic).decode("utf-8", "replace")[:_LONGEST_NAME]

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of output."""
        self._pass_on(self._redactor.feed(chunk))

    def close(self) -> None:
        """Pass on what was held back; the output is over."""
        self._pass_on(self._redactor.flush())

    def tail(self) -> bytes:
        """Return the end of the redacted output."""
        return self._kept.bytes()

    def _pass_on(self, clean: bytes) -> None:
        if not clean:
            return
        self._kept.feed(clean)
        self._read_lines(clean)
        if self._left <= 0:
            return
        self._output(clean[: self._left])
        self._left -= len(clean)
        if self._left < 0:
            self._output(b"\n[output over %d bytes is not shown]\n" % self._limit)

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
