"""Runs in a workspace's Pod: the streams of an exec to and from calls of the agent.

A WebSocket of Kubernetes cannot say that the input ends, nor is anybody told in the Pod that it was
cut. So the input comes in frames: u32 length, big endian, and so many bytes. Length 0 is the end of
the input, 0xffffffff a sign of life. Without either for SILENT_SECONDS, or when the input ends
without having said so, the connection is lost and the call is hung up on.

With arguments it is one call, whose output is as it is. Without any it serves one call after the
other, since to start a process in a Pod takes longer than most calls. Each begins with a frame of
JSON, and its input follows to its end: `{"arguments": [...]}`, `{"give": "<the configuration's
file>"}`, or `{"reach": ["<host>", <port>]}`. What it says comes in frames, too: u8 kind, u32 length
and so many bytes of OUTPUT or ERRORS, and at last ENDED with the exit code in place of the length.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, NoReturn

AGENT = "/usr/lib/svc/agent"
FOLDER = "/var/lib/svc"
SOCKET = f"{FOLDER}/agent.sock"
SERVING_SECONDS = 3.0
SILENT_SECONDS = 90.0
ENDING_SECONDS = 5.0
ATTEMPT_SECONDS = 2.0
ALIVE = 0xFFFFFFFF
PIECE = 262144
ENDED, OUTPUT, ERRORS = range(3)
HEAD = struct.Struct("!BI")
GIVEN_BY_ANOTHER = 45


def exactly(count: int) -> bytes | None:
    """So many bytes of the input; None when it is lost."""
    found = b""
    while len(found) < count:
        if not select.select([0], [], [], SILENT_SECONDS)[0]:
            return None
        piece = os.read(0, min(count - len(found), PIECE))
        if not piece:
            return None
        found += piece
    return found


def next_frame() -> bytes | None:
    """The next frame of the input that says something; empty at an end, None when it is lost."""
    while True:
        header = exactly(4)
        size = ALIVE if header is None else struct.unpack("!I", header)[0]
        if header is None or size != ALIVE:
            return None if header is None else exactly(size)


def write(*pieces: bytes) -> None:
    """Write all of it to the output, which may take a part only."""
    left = [memoryview(piece) for piece in pieces if piece]
    while left:
        count = os.writev(1, left)
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]


class Call:
    """A call of the agent: served by PID 1 of the workspace, or by a process of its own.

    ``framed``: others may follow it, so all that it says is in frames.
    """

    def __init__(self, arguments: list[str], framed: bool) -> None:
        self.framed = framed
        self.taken = True
        self.errors, theirs = os.pipe() if framed else (-1, 2)
        self.agent: subprocess.Popen[bytes] | None = None
        connection, self.ending = connected(arguments, theirs)
        if connection is None:
            import subprocess

            connection, other = socket.socketpair()
            self.agent = subprocess.Popen(
                [AGENT, *arguments], stdin=other.fileno(), stdout=other.fileno(), stderr=theirs
            )
            other.close()
        self.connection = connection
        if framed:
            os.close(theirs)
            os.set_blocking(self.errors, False)
        threading.Thread(target=self.run, daemon=True).start()

    def give(self, piece: bytes) -> None:
        """Pass input on, for as long as somebody takes it."""
        try:
            if self.taken:
                self.connection.sendall(piece)
        except OSError:
            self.taken = False

    def end(self) -> None:
        """End its input."""
        self.hang_up(socket.SHUT_WR)

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Have it end."""
        try:
            self.connection.shutdown(how)
        except OSError:
            pass
        if self.agent is not None and how == socket.SHUT_RDWR:
            self.agent.kill()

    def run(self) -> None:
        """Pass on what it says, and tell how it ended."""
        try:
            connection = self.connection.fileno()
            waiting = [connection, self.errors] if self.framed else [connection]
            while connection in waiting:
                for fd in select.select(waiting, [], [])[0]:
                    if not self.pass_on(fd):
                        waiting.remove(fd)
            code = self.code()
            if not self.framed:
                os._exit(code)
            while self.pass_on(self.errors):
                pass
            self.connection.close()
            os.close(self.errors)
            os.close(self.ending)
            write(HEAD.pack(ENDED, code))
        except OSError:
            os._exit(141)

    def pass_on(self, fd: int) -> bool:
        """Write what there is to read; False at the end."""
        try:
            data = os.read(fd, PIECE)
        except (ConnectionError, BlockingIOError):
            return False
        if self.framed and data:
            write(HEAD.pack(ERRORS if fd == self.errors else OUTPUT, len(data)), data)
        else:
            write(data)
        return bool(data)

    def code(self) -> int:
        """How it ended."""
        if self.agent is not None:
            return self.agent.wait() & 0xFF
        until = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < until:
            said = os.pread(self.ending, 64, 0)
            if said.startswith(b"exit ") and said.endswith(b"\n"):
                return int(said[5:]) & 0xFF
            time.sleep(0.002)
        return 255


def connected(arguments: list[str], errors: int) -> tuple[socket.socket | None, int]:
    """A call that PID 1 serves, and the file with its end; no connection when it serves none."""
    until = time.monotonic() + SERVING_SECONDS
    ending = os.memfd_create("agent ending", os.MFD_CLOEXEC)
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            request(arguments, connection, errors, ending)
            return connection, ending
        except OSError:
            connection.close()
            if time.monotonic() > until:
                return None, ending
            time.sleep(0.01)


def request(arguments: list[str], connection: socket.socket, errors: int, ending: int) -> None:
    """Have PID 1 of the workspace serve the call."""
    connection.connect(SOCKET)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", peer)[0] != 1:
        raise OSError("PID 1 does not listen there")
    asked = json.dumps({"arguments": arguments}).encode() + b"\n"
    rights = array.array("i", [errors, ending])
    connection.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    if connection.recv(1) != b"+":
        raise OSError("the call was not accepted")


class Configuration:
    """The agent's configuration, which the workspace waits for; it is given once, by one launch."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.content = b""
        self.exit_code = 0
        try:
            os.mkdir(f"{FOLDER}/given", 0o700)
        except FileExistsError:
            self.exit_code = GIVEN_BY_ANOTHER

    def give(self, piece: bytes) -> None:
        """Take a part of it."""
        self.content += piece

    def end(self) -> None:
        """Have the workspace begin with it."""
        if not self.exit_code:
            new = os.open(f"{self.path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(new, "wb") as file:
                file.write(self.content)
            os.rename(f"{self.path}.new", self.path)
            with open(f"{FOLDER}/begin", "w") as begin:
                begin.write("\n")
        write(HEAD.pack(ENDED, self.exit_code))

    def hang_up(self) -> None:
        """Leave it half given, which others can see."""


class Attempt:
    """An attempt to connect to a server; its exit code is 0 when that was reached."""

    def __init__(self, host: str, port: int) -> None:
        try:
            socket.create_connection((host, port), ATTEMPT_SECONDS).close()
            self.exit_code = 0
        except OSError:
            self.exit_code = 1

    def give(self, piece: bytes) -> None:
        """Take nothing."""

    def end(self) -> None:
        """Tell how it ended."""
        write(HEAD.pack(ENDED, self.exit_code))

    def hang_up(self) -> None:
        """Do nothing more."""


def begun(asked: Any) -> Call | Configuration | Attempt:
    """What is asked for, under way."""
    if "give" in asked:
        return Configuration(asked["give"])
    if "reach" in asked:
        return Attempt(*asked["reach"])
    return Call(asked["arguments"], framed=True)


def main(arguments: list[str]) -> NoReturn:
    """Serve calls until the connection is lost."""
    call: Call | Configuration | Attempt | None = (
        Call(arguments, framed=False) if arguments else None
    )
    last = call
    while True:
        piece = next_frame()
        if piece is None:
            break
        if call is None:
            last = call = begun(json.loads(piece))
        elif piece:
            call.give(piece)
        else:
            call.end()
            # What comes behind the only call's input are signs of life.
            call = call if arguments else None
    if last is not None:
        last.hang_up()
    os._exit(255)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BrokenPipeError:
        os._exit(141)
