"""A Docker Engine and an agent that do exactly what a test says, behind a real socket.

By default the agent behaves: commands are run by ``/bin/sh``, without a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs.agent.session.channel import (
    MAX_DATA,
    WINDOW,
    Frame,
    FrameDecoder,
    FromClient,
    ToClient,
    encode_frame,
)
from tests.support.waiting import LONG_WAIT

CONTAINER = "c" * 64
EXEC = "e" * 64


class Peer:
    """One exec: the agent's end of a session."""

    def __init__(self, engine: ScriptedEngine, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self.writer = writer
        self.frames: list[Frame] = []
        self.programs: dict[int, asyncio.subprocess.Process] = {}
        self.windows: dict[int, int] = {}
        self.closed = False

    def send(self, kind: int, channel: int, payload: bytes | dict[str, Any] = b"") -> None:
        """Send one frame."""
        content = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self.raw(encode_frame(kind, channel, content))

    def raw(self, data: bytes, stream: int = 1) -> None:
        """Send bytes, as the engine wraps them."""
        self.writer.write(bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data)

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Hear the client until it goes."""
        decoder = FrameDecoder()
        try:
            while data := await reader.read(65536):
                decoder.feed(data)
                while (frame := decoder.take()) is not None:
                    self.frames.append(frame)
                    await self.engine.behave(self, frame)
        finally:
            self.closed = True
            for program in self.programs.values():
                _hang_up(program)

    async def obey(self, frame: Frame) -> None:
        """Do what an agent does."""
        number, payload = frame.channel, frame.payload
        program = self.programs.get(number)
        if frame.type == FromClient.SPEC:
            self.send(ToClient.READY, 0, {"spoolId": "spool"})
        elif frame.type == FromClient.OPEN:
            request = json.loads(payload)
            if request["kind"] == "exec":
                await self.run(number, request["command"], request["env"])
            elif request["kind"] == "shell":
                await self.run(number, "exec /bin/sh", request["env"])
            elif request["kind"] == "forward":
                self.send(ToClient.REFUSED, number, {"code": "connect-failed", "message": "closed"})
            else:
                self.send(ToClient.REFUSED, number, {"code": "no-subsystem", "message": "no sftp"})
        elif frame.type == FromClient.DATA and program is not None:
            assert program.stdin is not None
            program.stdin.write(payload)
            self.send(ToClient.WINDOW, number, WINDOW.pack(len(payload)))
        elif frame.type == FromClient.EOF and program is not None:
            assert program.stdin is not None
            program.stdin.close()
        elif frame.type == FromClient.SIGNAL and program is not None:
            program.send_signal(signal.Signals[f"SIG{payload.decode().removeprefix('SIG')}"])
        elif frame.type == FromClient.WINDOW and number in self.windows:
            self.windows[number] += WINDOW.unpack(payload)[0]
        elif frame.type == FromClient.CLOSE and program is not None:
            _hang_up(program)

    async def run(self, number: int, command: str, env: dict[str, str]) -> None:
        """Run a command for a channel."""
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=env,
            start_new_session=True,
        )
        self.programs[number] = program
        self.windows[number] = 2 * 1024 * 1024
        self.send(ToClient.OPENED, number, {"process": number})
        task = asyncio.create_task(self._pump(number, program))
        self.engine.tasks.add(task)

    async def _pump(self, number: int, program: asyncio.subprocess.Process) -> None:
        async def copy(stream: asyncio.StreamReader | None, kind: int) -> None:
            assert stream is not None
            while data := await stream.read(MAX_DATA):
                while self.windows[number] < len(data) and not self.closed:
                    await asyncio.sleep(0.001)
                self.windows[number] -= len(data)
                if not self.closed:
                    self.send(kind, number, data)
                    with contextlib.suppress(ConnectionError):
                        await self.writer.drain()

        await asyncio.gather(
            copy(program.stdout, ToClient.STDOUT), copy(program.stderr, ToClient.STDERR)
        )
        code = await program.wait()
        if self.closed:
            return
        ending: dict[str, Any] = {"code": code, "signal": None, "reason": "exited"}
        if code < 0:
            ending = {"code": None, "signal": signal.Signals(-code).name, "reason": "signalled"}
        self.send(ToClient.EXIT, number, ending)


def _hang_up(program: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


class ScriptedEngine:
    """The engine, on a socket in ``folder``; it has the container ``CONTAINER``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self.peers: list[Peer] = []
        """The execs since the test began."""
        self._peers: list[Peer] = []
        self.requests: list[tuple[str, str]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        """Answers by a part of the path, instead of the usual ones."""
        self.behaviour: Callable[[Peer, Frame], bool] = lambda peer, frame: False
        """What the agent does instead of the usual; True when that was all."""
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(LONG_WAIT)

    @property
    def url(self) -> str:
        """Its address, for ``DOCKER_HOST``."""
        return f"unix://{self.path}"

    def do(self, action: Callable[[], None]) -> None:
        """Do something where the engine runs."""
        self.loop.call_soon_threadsafe(action)

    def reset(self) -> None:
        """Behave again, and forget what was."""
        self.answers.clear()
        self.behaviour = lambda peer, frame: False
        self.peers.clear()
        self.requests.clear()

    def stop(self) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def behave(self, peer: Peer, frame: Frame) -> None:
        """Let the agent hear a frame."""
        if not self.behaviour(peer, frame):
            await peer.obey(frame)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_unix_server(self._serve, str(self.path))
        )
        self._ready.set()
        self.loop.run_forever()
        server.close()
        for peer in self._peers:
            peer.writer.close()
        tasks = asyncio.all_tasks(self.loop)
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path = head.split(" ")[:2]
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            self.requests.append((method, path))
            status, body = self._answer(method, path)
            if path.endswith("/start") and status == 200:
                writer.write(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n")
                peer = Peer(self, writer)
                self.peers.append(peer)
                self._peers.append(peer)
                await peer.serve(reader)
                return
            content = json.dumps(body).encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
            )

    def _answer(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        for part, answer in self.answers.items():
            if part in path:
                return answer
        if path == f"/containers/{CONTAINER}/exec":
            return 201, {"Id": EXEC}
        if path == f"/exec/{EXEC}/start":
            return 200, {}
        if path == f"/exec/{EXEC}/json":
            return 200, {"Running": False, "ExitCode": 0}
        if path == f"/containers/{CONTAINER}/json":
            return 200, {"State": {"Running": True}}
        return 404, {"message": "no such thing"}
