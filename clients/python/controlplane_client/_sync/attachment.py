"""A client that is attached to a running command: its terminal or its pipes."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from controlplane_client._sync.connection import Connection
from controlplane_client._sync.platform import (
    Lock,
    WebSocket,
    open_web_socket,
    sleep,
)
from controlplane_client.errors import Unreachable, problem_of
from controlplane_client.models import Output, RunEnd
from controlplane_client.retrying import may_repeat_answer, seconds_before
from controlplane_client.web_sockets import Closed, Refused

KEPT_BYTES = 1024 * 1024
"""How much input is kept for a connection that breaks: what was not taken is sent again."""

LASTING_SECONDS = 10.0
"""A connection that has lasted so long is no failure when it breaks."""

_INPUT_END = {"type": "input-end"}


class Attachment:
    """What a command writes, as it comes, and input for it. Use it in a ``with`` block.

    A broken connection is reopened: output continues after the last byte, and input that was not
    accepted is sent again, once. Any number of clients may be attached to one command.
    """

    def __init__(
        self, connection: Connection, run_id: str, *, after: int | None, after_stderr: int
    ) -> None:
        self._connection = connection
        self._path = f"/v1/runs/{run_id}/attach"
        self._run_id = run_id
        self._seen: dict[str, int | None] = {"stdout": after, "stderr": after_stderr}
        self._stream = "stdout"
        self._socket: WebSocket | None = None
        self._connected_at = 0.0
        self._left = False
        self._lock = Lock()
        self._sent = b""
        self._taken = 0
        self._controls: list[dict[str, Any]] = []
        self._size: tuple[int, int] | None = None
        self._input_ended = False
        self.terminal: tuple[int, int] | None = None
        """Columns and rows of its terminal; None when it has none."""
        self.input_open = False
        """Whether it accepts input."""
        self.end: RunEnd | None = None
        """How it ended; None while it is running."""

    def __enter__(self) -> Attachment:
        self._left = False
        self._reconnect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach; the command goes on."""
        # Said first: a connection that is being made meanwhile is closed by who makes it.
        self._left = True
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def output(self) -> Generator[Output, None, None]:
        """Yield what it writes until it ends; ``end`` then says how it ended.

        Raises ``Problem`` for what the service refuses, ``Unreachable`` when it does not answer, or
        when the connection broke with more unconfirmed input than is kept.
        """
        failures = 0
        while self.end is None:
            socket = self._socket
            if socket is None:
                return
            try:
                message = socket.receive()
            except Closed:
                if self._left:
                    return
                if time.monotonic() - self._connected_at >= LASTING_SECONDS:
                    failures = 0
                failures += 1
                if failures > self._connection.retries:
                    raise Unreachable("the connection breaks again and again") from None
                sleep(seconds_before(failures))
                self._reconnect()
                continue
            if isinstance(message, bytes):
                failures = 0
                yield self._passed(message)
            else:
                self._told(json.loads(message))

    def _passed(self, content: bytes) -> Output:
        place = "stderr" if self._stream == "stderr" else "stdout"
        seen = self._seen[place]
        if seen is not None:
            self._seen[place] = seen + len(content)
        return Output(self._stream, content)

    def _told(self, told: dict[str, Any]) -> None:
        kind = told.get("type")
        if kind == "output":
            self._stream = told["stream"]
            place = "stderr" if self._stream == "stderr" else "stdout"
            self._seen[place] = int(told["offset"])
        elif kind == "end":
            self.end = RunEnd.of(told)
        elif kind == "error":
            document = told["problem"]
            if document.get("code") != "slow-reader":
                raise problem_of(int(document.get("status", 0)), document)

    # ------------------------------------------------------------ what it is given

    def write(self, data: bytes | str) -> None:
        """Give it input."""
        content = data.encode() if isinstance(data, str) else data
        with self._lock:
            kept = self._sent + content
            self._sent = kept[-KEPT_BYTES:]
            self._taken += len(kept) - len(self._sent)
            self._send(content)

    def end_input(self) -> None:
        """Tell it that there is no more input."""
        with self._lock:
            self._input_ended = True
            self._send(json.dumps(_INPUT_END))

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        with self._lock:
            self.terminal = self._size = (columns, rows)
            self._send(_resized(columns, rows))

    def signal(self, name: str) -> None:
        """Send a signal to the process group of the command: ``INT``, ``TERM``, ``KILL`` …"""
        told = {"type": "signal", "signal": name.removeprefix("SIG")}
        with self._lock:
            if not self._send(json.dumps(told)):
                # Said once there is a connection again.
                self._controls.append(told)

    def _send(self, message: bytes | str) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(message)
        except Closed:
            return False
        return True

    # ------------------------------------------------------------ connections

    def _reconnect(self) -> None:
        with self._lock:
            again = self._socket is not None
            if self._socket is not None:
                self._socket.close()
            made = self._connected()
            if made is None:
                return
            socket, first = made
            try:
                self._begun(socket, first, again=again)
            except BaseException:
                socket.close()
                raise
            self._socket, self._connected_at = socket, time.monotonic()
            if self._left:
                # Who left has seen the one before, or none.
                self._socket = None
                socket.close()

    def _begun(self, socket: WebSocket, first: dict[str, Any], *, again: bool) -> None:
        if first.get("type") != "start":
            self._told(first)
            return
        size = first.get("terminal")
        self.terminal = None if size is None else (size["columns"], size["rows"])
        self.input_open = first["inputOpen"]
        self._stream = "pty" if size is not None else "stdout"
        offset = int(first["inputOffset"])
        if not again:
            self._taken = offset
        elif offset < self._taken and self.input_open:
            raise Unreachable("the connection broke, and more input was lost than is kept")
        try:
            self._given(socket, offset)
        except Closed:
            # It is noticed once more by who reads.
            return
        self._controls.clear()

    def _given(self, socket: WebSocket, offset: int) -> None:
        """Send again what the connection before may have lost."""
        if self._size is not None and self.terminal is not None:
            self.terminal = self._size
            socket.send(_resized(*self._size))
        rest = self._sent[offset - self._taken :] if self.input_open else b""
        if rest:
            socket.send(json.dumps({"type": "input", "offset": offset}))
            socket.send(rest)
        for told in self._controls:
            socket.send(json.dumps(told))
        if self._input_ended and self.input_open:
            socket.send(json.dumps(_INPUT_END))

    def _connected(self) -> tuple[WebSocket, dict[str, Any]] | None:
        """Return a connection and what was said on it first; None once this was left."""
        attempt = 0
        while not self._left:
            attempt += 1
            last = attempt > self._connection.retries
            try:
                socket = open_web_socket(self._url(), self._connection.headers)
                try:
                    return socket, json.loads(socket.receive())
                except BaseException:
                    socket.close()
                    raise
            except Refused as refused:
                problem = problem_of(refused.status, refused.document)
                if last or not may_repeat_answer(problem.status, problem.code, repeatable=True):
                    raise problem from None
            except Closed as error:
                if last:
                    url = self._connection.base_url
                    raise Unreachable(f"{url} does not answer: {error}") from error
            sleep(seconds_before(attempt))
        return None

    def _url(self) -> str:
        stdout, stderr = self._seen["stdout"], self._seen["stderr"]
        query = {"after": "latest" if stdout is None else str(stdout)}
        if stderr:
            query["afterStderr"] = str(stderr)
        if self._connection.owner:
            query["ownerUserId"] = self._connection.owner
        scheme, _, rest = self._connection.base_url.partition("://")
        secure = "wss" if scheme == "https" else "ws"
        return f"{secure}://{rest}{self._path}?{urlencode(query)}"


def _resized(columns: int, rows: int) -> str:
    return json.dumps({"type": "resize", "columns": columns, "rows": rows})
