"""The client of an `agent session`: one connection, and its channels."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import Any

from runs.agent.session.channel import (
    INITIAL_WINDOW,
    MAX_DATA,
    WINDOW,
    Frame,
    FrameDecoder,
    FromClient,
    ToClient,
    encode_frame,
)
from tests.runs.agent.recorded import Record, Runs

PTY = {"columns": 100, "rows": 30, "term": "xterm"}
ORIGIN = {"address": "192.0.2.7", "port": 50022, "client": "a test", "user": "ws", "key": "SHA256"}
OVER = (ToClient.EXIT, ToClient.REFUSED)


class Session:
    """One connection. Windows are granted as output comes, unless a channel is told not to."""

    def __init__(self, runs: Runs, *, recorded: bool = True, **members: Any) -> None:
        self.runs = runs
        self.spec = runs.spec(**members) | {"version": 2, "mode": "interactive"}
        for name in ("argv", "stdin", "timeSeconds"):
            del self.spec[name]
        self.spec.setdefault("origin", None)
        if not recorded:
            self.spec["record"] = None
        self.run_id: str = self.spec["runId"]
        self.received: list[Frame] = []
        self.channels: dict[int, Channel] = {}
        self._decoder = FrameDecoder()
        self.process = subprocess.Popen(
            runs.command("session"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.send(FromClient.SPEC, 0, json.dumps(self.spec).encode())

    def send(self, kind: int, channel: int = 0, payload: bytes = b"") -> None:
        """Send one frame."""
        self.send_raw(encode_frame(kind, channel, payload))

    def send_raw(self, content: bytes) -> None:
        """Send bytes that need not be a frame."""
        assert self.process.stdin is not None
        view = memoryview(content)
        while view:
            view = view[self.process.stdin.write(view) :]

    def receive(self) -> Frame | None:
        """The next frame, None at the end."""
        assert self.process.stdout is not None
        while (frame := self._decoder.take()) is None:
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                return None
            self._decoder.feed(part)
        self.received.append(frame)
        if frame.channel in self.channels:
            self.channels[frame.channel].take(frame)
        return frame

    def until(self, kind: int, channel: int = 0) -> Any:
        """The payload of the next frame of a kind on a channel, as JSON."""
        while frame := self.receive():
            if (frame.type, frame.channel) == (kind, channel):
                return json.loads(frame.payload) if frame.payload else None
            assert frame.channel != channel or frame.type not in OVER, frame
        raise AssertionError(f"no frame {kind} in {self.received}")

    def open(self, kind: str, **members: Any) -> Channel:
        """Ask for a channel; whether it is opened is still to come."""
        number = max(self.channels, default=0) + 1
        channel = Channel(self, number)
        self.channels[number] = channel
        if kind != "forward":
            members = {"env": {}, **members}
        if kind in ("shell", "exec", "command"):
            members = {"pty": None, **members}
        self.send(FromClient.OPEN, number, json.dumps({"kind": kind, **members}).encode())
        return channel

    def command(self, *argv: str, **members: Any) -> Channel:
        """Open a channel for a program, and wait until it runs."""
        channel = self.open("command", argv=list(argv), **members)
        channel.until(ToClient.OPENED)
        return channel

    def forward(self, port: int, host: str = "127.0.0.1") -> Channel:
        """Open a channel to a server in the workspace."""
        channel = self.open("forward", host=host, port=port)
        channel.until(ToClient.OPENED)
        return channel

    def leave(self) -> None:
        """Be gone, as a client whose connection broke."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def end(self) -> int:
        """Close the connection and wait for the session's process."""
        self.leave()
        assert self.process.stderr is not None
        if self.process.stderr.closed:
            return self.process.wait()
        complaint = self.process.stderr.read()
        self.process.stderr.close()
        assert not complaint, complaint.decode()
        return self.process.wait()

    def record(self) -> Record:
        """The whole record: the client leaves, and the session ends."""
        self.end()
        return self.runs.sealed(self.run_id)


class Channel:
    """One channel of a connection."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.received: list[Frame] = []
        self.grants = True
        """Whether the agent is granted as much as has come."""
        self.window = INITIAL_WINDOW
        """How many bytes the agent takes."""

    @property
    def run_id(self) -> str:
        """The run of the session."""
        return self.session.run_id

    @property
    def is_over(self) -> bool:
        """Whether the agent has said so."""
        return bool(self.received) and self.received[-1].type in OVER

    def take(self, frame: Frame) -> None:
        """A frame of this channel has come."""
        assert not self.is_over, (self.received[-1], frame)
        self.received.append(frame)
        if frame.type == ToClient.WINDOW:
            self.window += WINDOW.unpack(frame.payload)[0]
        elif frame.type in (ToClient.STDOUT, ToClient.STDERR) and self.grants:
            self.grant(len(frame.payload))

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame."""
        self.session.send(kind, self.number, payload)

    def grant(self, count: int) -> None:
        """Take so many more bytes of output."""
        with contextlib.suppress(BrokenPipeError):
            self.send(FromClient.WINDOW, WINDOW.pack(count))

    def write(self, data: bytes) -> None:
        """Send input, as the window allows."""
        while data:
            while not self.window:
                assert self.session.receive() is not None
            part = data[: min(self.window, MAX_DATA)]
            self.window -= len(part)
            data = data[len(part) :]
            self.send(FromClient.DATA, part)

    def until(self, kind: int) -> Any:
        """The payload of the first frame of a kind, as JSON."""
        while True:
            for frame in self.received:
                if frame.type == kind:
                    return json.loads(frame.payload) if frame.payload else None
            assert not self.is_over, self.received[-1]
            assert self.session.receive() is not None, self.session.received

    def until_shown(self, text: bytes, kind: int = ToClient.STDOUT) -> None:
        """Until the output that comes from now on contains a text."""
        start = len(self.output(kind))
        while text not in self.output(kind)[start:]:
            assert self.session.receive() is not None, self.session.received

    def output(self, kind: int = ToClient.STDOUT) -> bytes:
        """All that has been received of a stream."""
        return b"".join(frame.payload for frame in self.received if frame.type == kind)

    def leave(self) -> None:
        """The whole connection is gone."""
        self.session.leave()

    def record(self) -> Record:
        """As Session.record."""
        return self.session.record()
