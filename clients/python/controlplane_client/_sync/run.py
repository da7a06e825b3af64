"""One run: its input, its end, its record."""

from __future__ import annotations

import base64
import codecs
import json
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from controlplane_client._sync.attachment import Attachment
from controlplane_client._sync.connection import Connection
from controlplane_client._sync.platform import blocking, sleep, tell
from controlplane_client.errors import ControlPlaneError, Problem
from controlplane_client.local_files import CHUNK_BYTES
from controlplane_client.models import OutputPart, RunInfo, StreamEvent, Verified
from controlplane_client.record_check import check_export
from controlplane_client.retrying import seconds_before

_INPUT_BYTES = 256 * 1024


class Run:
    """A run of a workspace, running or ended."""

    def __init__(self, connection: Connection, run_id: str, info: RunInfo | None = None) -> None:
        self._connection = connection
        self._path = f"/v1/runs/{run_id}"
        self._input_offset: int | None = None
        self.id = run_id
        self.info = info
        """As it was last read; None when it was not yet."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def refresh(self) -> RunInfo:
        """Read its current state."""
        self.info = RunInfo.of(self._connection.json("GET", self._path, repeatable=True))
        return self.info

    def follow(
        self, after: str | None = None, *, timeout: float | None = None
    ) -> Generator[StreamEvent, None, None]:
        """Yield every event of its record, past and future, until its end.

        Broken connections are reopened, and nothing is missing or comes twice. The last event is
        ``end``. ``after`` is the ``id`` of the last event that you have, or ``latest``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with closing(
            self._connection.events(f"{self._path}/stream", after=after, deadline=deadline)
        ) as events:
            for event in events:
                if event.type == "end":
                    self.info = RunInfo.of(event.data)
                yield event

    def attach(self, after: int | None = 0, *, after_stderr: int = 0) -> Attachment:
        """Return an attachment to its command over a WebSocket, for a ``with`` block.

        ``after`` is how many bytes of its output you have; None: only new output is sent. Needs
        ``controlplane-client[attach]``.
        """
        return Attachment(self._connection, self.id, after=after, after_stderr=after_stderr)

    def wait(
        self,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        timeout: float | None = None,
    ) -> RunInfo:
        """Wait for its end; the callbacks get what it writes as it comes, from the beginning.

        Raises ``WaitTimeout`` after ``timeout`` seconds; the run goes on.
        """
        quiet = on_stdout is None and on_stderr is None
        told = {"stdout": on_stdout, "pty": on_stdout, "stderr": on_stderr}
        texts = {name: _decoder() for name in told}
        with closing(self.follow("latest" if quiet else None, timeout=timeout)) as events:
            for event in events:
                name = event.stream
                if name in told:
                    text = texts[name].decode(event.content)
                    if text:
                        tell(told[name], text)
        for name, decoder in texts.items():
            text = decoder.decode(b"", True)
            if text:
                tell(told[name], text)
        if self.info is None or not self.info.ended:
            return self.refresh()
        return self.info

    def write(self, data: bytes | str, *, end: bool = False, timeout: float | None = None) -> None:
        """Give it input; ``end`` closes it. The run must be started with ``stdin=True``.

        Waits while the command does not read its input, at most ``timeout`` seconds: then it
        raises ``Problem`` with the code ``input-full``. Bytes are never sent to it twice, even if
        a request had to be repeated.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        content = data.encode() if isinstance(data, str) else data
        if self._input_offset is None:
            state = self._input({"stdin": ""}, repeatable=True)
            self._input_offset = int(state["offset"])
        while True:
            part, content = content[:_INPUT_BYTES], content[_INPUT_BYTES:]
            body = {
                "stdinBase64": base64.b64encode(part).decode(),
                "offset": self._input_offset,
                **({"end": True} if end and not content else {}),
            }
            state = self._input_with_room(body, deadline)
            self._input_offset = int(state["offset"])
            if not content:
                return

    def _input_with_room(self, body: dict[str, Any], deadline: float | None) -> Any:
        while True:
            try:
                return self._input(body, repeatable=True)
            except Problem as problem:
                in_time = deadline is None or time.monotonic() < deadline
                if problem.code != "input-full" or not in_time:
                    raise
                sleep(seconds_before(1, problem.retry_after))

    def close_stdin(self) -> None:
        """Tell it that there is no more input."""
        self._input({"end": True}, repeatable=True)

    def signal(self, name: str) -> None:
        """Send a signal to the process group of its command: ``INT``, ``TERM``, ``KILL`` …"""
        self._input({"signal": name.removeprefix("SIG")})

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        self._input({"resize": {"columns": columns, "rows": rows}}, repeatable=True)

    def _input(self, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        return self._connection.json("POST", f"{self._path}/input", body, repeatable=repeatable)

    def cancel(self) -> RunInfo:
        """End all its processes: TERM, then KILL. ``wait`` returns when they have ended."""
        body = {"status": "cancelled"}
        told = self._connection.json("PATCH", self._path, body, repeatable=True)
        self.info = RunInfo.of(told)
        return self.info

    def timeline(
        self, *, kinds: Iterable[str] = (), start: int = 0, end: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of its record in order; ``kinds``, ``start`` and ``end`` select."""
        names = ",".join(kinds) or None
        following: str | None = str(start)
        while following is not None:
            page = self._connection.json(
                "GET",
                f"{self._path}/timeline",
                repeatable=True,
                kinds=names,
                fromSequence=following,
                toSequence=end,
                limit=1000,
            )
            for item in page["items"]:
                yield item
            following = page.get("nextFromSequence")

    def scrollback(self, stream: str = "stdout") -> bytes:
        """Return what it wrote (``stdout``, ``stderr``, ``pty``) or read (``stdin``), all of it."""
        return self._bytes("scrollback", accept="application/octet-stream", stream=stream)

    def output(
        self, stream: str = "stdout", *, start: int = 0, limit: int = 1024 * 1024
    ) -> OutputPart:
        """Return at most ``limit`` bytes of a stream from byte ``start``, as recorded so far.

        ``next`` of the answer is where to continue. ``limit`` is at most 16 MiB.
        """
        told = self._connection.json(
            "GET",
            f"{self._path}/scrollback",
            repeatable=True,
            stream=stream,
            fromOffset=start,
            limitBytes=limit,
        )
        return OutputPart.of(told)

    def changes(self) -> dict[str, Any]:
        """Return the files that it changed and their ``diff``, as the API has them."""
        told: dict[str, Any] = self._read("changes")
        return told

    def loss(self) -> dict[str, Any]:
        """Return what is missing from its record; ``complete`` is true if nothing is."""
        told: dict[str, Any] = self._read("loss")
        return told

    def asciicast(self) -> str:
        """Return what it showed, for players: asciicast, version 3."""
        return (self._bytes("export", format="asciicast")).decode()

    def text(self) -> str:
        """Return its output without escape sequences."""
        return (self._bytes("export", format="text")).decode("utf-8", "replace")

    def in_toto(self) -> dict[str, Any]:
        """Return the signed statement about record, image and tree: in-toto in a DSSE envelope."""
        told: dict[str, Any] = json.loads(self._bytes("export", format="in-toto"))
        return told

    def otlp(self) -> dict[str, Any]:
        """Return the run and its processes as OpenTelemetry spans, in OTLP's JSON."""
        told: dict[str, Any] = json.loads(self._bytes("export", format="otlp"))
        return told

    def ocsf(self) -> Iterator[dict[str, Any]]:
        """Yield its events in the Open Cybersecurity Schema Framework."""
        for line in self._lines("ocsf"):
            yield json.loads(line)

    def export(self) -> Iterator[bytes]:
        """Yield the whole record with its proof, as lines of NDJSON."""
        for line in self._lines("ndjson"):
            yield line

    def _lines(self, format: str) -> Iterator[bytes]:
        rest = b""
        with closing(self._parts(format)) as parts:
            for content in parts:
                *lines, rest = (rest + content).split(b"\n")
                for line in lines:
                    yield line + b"\n"

    def _parts(self, format: str) -> Generator[bytes, None, None]:
        part = b"\n"
        with self._connection.answer(
            "GET", f"{self._path}/export", repeatable=True, streamed=True, format=format
        ) as answer:
            for part in answer.iter_bytes(CHUNK_BYTES):
                yield part
        if not part.endswith(b"\n"):
            raise ControlPlaneError("the export ended in the middle of a line")

    def verify(self, public_key: str | None = None) -> Verified:
        """Download the record and check it here: chain, losses, seal and signature.

        ``public_key`` is the installation's, in base64, and must have signed it: a record that has
        not ended is not ok. Without it, the key in the record is used, which shows damage but not
        who signed.
        """
        # The check goes through it line by line, and a record may be larger than the memory.
        with tempfile.TemporaryFile() as file:
            with closing(self._parts("ndjson")) as parts:
                for part in parts:
                    blocking(file.write, part)
            file.seek(0)
            return blocking(check_export, file, public_key)

    def _read(self, what: str) -> Any:
        return self._connection.json("GET", f"{self._path}/{what}", repeatable=True)

    def _bytes(self, what: str, *, accept: str = "*/*", **query: Any) -> bytes:
        with self._connection.answer(
            "GET", f"{self._path}/{what}", repeatable=True, headers={"accept": accept}, **query
        ) as answer:
            return answer.content


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
