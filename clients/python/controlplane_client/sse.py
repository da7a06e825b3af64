"""Server-sent events, from bytes as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator

from controlplane_client.models import StreamEvent


class Parser:
    """Takes an event stream apart.

    ``feed`` may be given any pieces. A comment, which the service sends while there is nothing to
    say, comes out as None, so that whoever reads can look at the clock.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._type = ""
        self._id: str | None = None
        self._data: list[str] = []
        self.retry_seconds: float | None = None
        """How long to wait before coming back, where the service has said so."""

    def feed(self, content: bytes) -> Iterator[StreamEvent | None]:
        """Return what is complete with these bytes."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").removesuffix("\r")
            if text.startswith(":"):
                yield None
            elif text:
                self._field(*text.split(":", 1))
            elif self._data:
                yield StreamEvent(
                    self._type or "message", self._id, json.loads("\n".join(self._data))
                )
            if not text:
                self._type, self._id, self._data = "", None, []

    def _field(self, name: str, value: str = "") -> None:
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
        elif name == "retry" and value.isdigit():
            self.retry_seconds = int(value) / 1000
