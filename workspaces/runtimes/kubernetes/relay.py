"""Runs in a workspace's Pod: one exec's streams to and from one call of the agent.

A WebSocket of Kubernetes cannot say that the input ends, nor is anybody told in the Pod that it was
cut. So the input comes in frames: u32 length, big endian, and so many bytes. Length 0 is the end of
the input, 0xffffffff a sign of life. Without either for SILENT_SECONDS, or when the input ends
without having said so, the connection is lost and the call is hung up on. Output is as it is.
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
    from collections.abc import Callable

AGENT = "/usr/lib/svc/agent"
SOCKET = "/var/lib/svc/agent.sock"
SERVING_SECONDS = 3.0
SILENT_SECONDS = 90.0
ENDING_SECONDS = 5.0
ALIVE = 0xFFFFFFFF
PIECE = 262144


def call(arguments: list[str], connection: socket.socket, ending: int) -> None:
    """Have PID 1 of the workspace serve the call."""
    connection.connect(SOCKET)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", peer)[0] != 1:
        raise OSError("PID 1 does not listen there")
    request = json.dumps({"arguments": arguments}).encode() + b"\n"
    rights = array.array("i", [2, ending])
    connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    if connection.recv(1) != b"+":
        raise OSError("the call was not accepted")


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


def feed(
    give: Callable[[bytes], object], end: Callable[[], object], lost: Callable[[], object]
) -> None:
    """Pass the input on, for as long as somebody takes it."""
    taken = True
    while True:
        header = exactly(4)
        size = None if header is None else struct.unpack("!I", header)[0]
        if size == ALIVE:
            continue
        if size == 0:
            end()
            # What comes now are signs of life.
            taken = False
            continue
        piece = None if size is None else exactly(size)
        if piece is None:
            lost()
            return
        if taken:
            try:
                give(piece)
            except OSError:
                taken = False


def served(arguments: list[str]) -> int | None:
    """The exit code of a call that PID 1 serves; None when it serves none."""
    until = time.monotonic() + SERVING_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ending = os.memfd_create("agent ending", os.MFD_CLOEXEC)
        try:
            call(arguments, connection, ending)
            break
        except OSError:
            connection.close()
            os.close(ending)
            if time.monotonic() > until:
                return None
            time.sleep(0.01)

    def hang_up(how: int) -> None:
        try:
            connection.shutdown(how)
        except OSError:
            pass

    threading.Thread(
        target=feed,
        args=(
            connection.sendall,
            lambda: hang_up(socket.SHUT_WR),
            lambda: hang_up(socket.SHUT_RDWR),
        ),
        daemon=True,
    ).start()
    pass_on(connection.recv)
    until = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < until:
        said = os.pread(ending, 64, 0)
        if said.startswith(b"exit ") and said.endswith(b"\n"):
            return int(said[5:])
        time.sleep(0.002)
    return 255


def pass_on(read: Callable[[int], bytes]) -> None:
    """Write everything to the output."""
    while True:
        try:
            data = memoryview(read(PIECE))
        except ConnectionError:
            return
        if not data:
            return
        while data:
            data = data[os.write(1, data) :]


def started(arguments: list[str]) -> int:
    """The exit code of an agent of its own."""
    import subprocess  # it takes as long as all others together

    agent = subprocess.Popen([AGENT, *arguments], stdin=subprocess.PIPE, bufsize=0)
    assert agent.stdin is not None
    threading.Thread(
        target=feed, args=(agent.stdin.write, agent.stdin.close, agent.kill), daemon=True
    ).start()
    return agent.wait()


def main(arguments: list[str]) -> None:
    code = served(arguments)
    os._exit((started(arguments) if code is None else code) & 0xFF)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BrokenPipeError:
        os._exit(141)
