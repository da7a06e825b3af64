"""A client that is attached to a running command: its terminal or its pipes."""

from __future__ import annotations

import json
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


class Attachment:
    """What a command writes, as it comes, and input for it. Use it in a ``with`` block.

    A connection that breaks is made again: output goes on behind the last byte, and input that was
    not taken is given again, once. Any number of clients may be attached to one command.
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
        self._lock = Lock()
        self._sent = b""
        self._taken = 0
        self._controls: list[dict[str, Any]] = []
        self.terminal: tuple[int, int] | None = None
        """Columns and rows of its terminal; None when it has none."""
        self.input_open = False
        """Whether it takes input."""
        self.end: RunEnd | None = None
        """How it ended; None while it has not."""

    def __enter__(self) -> Attachment:
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
        """Leave; the command goes on."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def output(self) -> Generator[Output, None, None]:
        """Give what it writes, until it ends; ``end`` says then how.

        Raises ``Problem`` for what the service refuses, ``Unreachable`` when it does not answer.
        """
        failures = 0
        while self.end is None:
            socket = self._socket
            if socket is None:
                return
            try:
                message = socket.receive()
            except Closed:
                if self._socket is None:
                    return
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
        self._control({"type": "input-end"})

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        self.terminal = (columns, rows)
        self._control({"type": "resize", "columns": columns, "rows": rows})

    def signal(self, name: str) -> None:
        """Send a signal to the process group of the command: ``INT``, ``TERM``, ``KILL`` …"""
        self._control({"type": "signal", "signal": name.removeprefix("SIG")})

    def _control(self, told: dict[str, Any]) -> None:
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
            socket, first = self._connected()
            if first.get("type") == "start":
                size = first.get("terminal")
                self.terminal = None if size is None else (size["columns"], size["rows"])
                self.input_open = first["inputOpen"]
                self._stream = "pty" if size is not None else "stdout"
                self._given(socket, int(first["inputOffset"]), again=again)
            else:
                self._told(first)
            self._socket = socket

    def _given(self, socket: WebSocket, offset: int, *, again: bool) -> None:
        if again:
            rest = self._sent[max(0, offset - self._taken) :]
            try:
                if rest:
                    socket.send(json.dumps({"type": "input", "offset": offset}))
                    socket.send(rest)
                for told in self._controls:
                    socket.send(json.dumps(told))
            except Closed:
                return
        else:
            self._taken = offset
        self._controls.clear()

    def _connected(self) -> tuple[WebSocket, dict[str, Any]]:
        attempt = 0
        while True:
            attempt += 1
            last = attempt > self._connection.retries
            try:
                socket = open_web_socket(self._url(), self._connection.headers)
                return socket, json.loads(socket.receive())
            except Refused as refused:
                problem = problem_of(refused.status, refused.document)
                if last or not may_repeat_answer(problem.status, problem.code, repeatable=True):
                    raise problem from None
            except Closed as error:
                if last:
                    url = self._connection.base_url
                    raise Unreachable(f"{url} does not answer: {error}") from error
            sleep(seconds_before(attempt))

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
