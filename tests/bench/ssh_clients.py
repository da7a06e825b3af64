"""What an OpenSSH client does, timed: the same program with the same options for every way in."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.bench.ssh_place import CIPHER, PROMPT, Side
from tests.support.waiting import LONG_WAIT

_PIECE = 1 << 18
_BEGIN = b"begin\n"


@contextmanager
def client(
    side: Side, *arguments: str, cipher: str | None = CIPHER
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``ssh`` for the block; it is gone afterwards."""
    process = subprocess.Popen(
        side.ssh(*arguments, cipher=cipher),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


def command(side: Side, *, cipher: str | None = CIPHER) -> float:
    """Seconds of ``ssh host true``, from its start to its end."""
    started = time.perf_counter()
    subprocess.run(
        side.ssh("true", cipher=cipher),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=LONG_WAIT,
    )
    return time.perf_counter() - started


def prompt(side: Side, *, cipher: str | None = CIPHER) -> float:
    """Seconds from the start of ``ssh -tt host`` until the login shell's prompt is there."""
    started = time.perf_counter()
    with client(side, "-tt", cipher=cipher) as process:
        until(process, PROMPT)
        taken = time.perf_counter() - started
        _leave(process, b"exit\n")
    return taken


@dataclass(frozen=True)
class Transfer:
    """Bytes through one session. ``path`` is read there, or for a file of ours copied to there."""

    name: str
    size: int
    path: str | None = None
    content: bytes = b""
    terminal: bool = False

    def rate(self, side: Side, *, cipher: str | None = CIPHER) -> float:
        """Bytes per second, without what the login takes."""
        seconds = self._up(side, cipher) if self.path is None else self._down(side, cipher)
        return self.size / seconds

    def _down(self, side: Side, cipher: str | None) -> float:
        options = ("-tt",) if self.terminal else ("-T",)
        # The first line ends the login. A terminal's line ends are two bytes each, as ever.
        script = f"echo {_BEGIN.decode().strip()}; exec cat {self.path}"
        with client(side, *options, script, cipher=cipher) as process:
            got = len(until(process, b"begin\r\n" if self.terminal else _BEGIN))
            started = time.perf_counter()
            assert process.stdout is not None
            buffer = bytearray(_PIECE)
            while count := process.stdout.readinto(buffer):  # type: ignore[attr-defined]
                got += count
            taken = time.perf_counter() - started
            _check(process, got >= self.size, f"only {got} of {self.size} bytes came")
        return taken

    def _up(self, side: Side, cipher: str | None) -> float:
        script = f"echo {_BEGIN.decode().strip()}; wc -c"
        with client(side, "-T", script, cipher=cipher) as process:
            until(process, _BEGIN)
            started = time.perf_counter()
            assert process.stdin is not None
            left = self.size
            while left:
                left -= process.stdin.write(memoryview(self.content)[: min(left, _PIECE)])
            process.stdin.close()
            assert process.stdout is not None
            answer = process.stdout.read()
            taken = time.perf_counter() - started
            _check(process, int(answer or 0) == self.size, f"{answer!r} bytes arrived")
        return taken


class Keyboard:
    """A terminal session whose program gives back each key as it comes."""

    SCRIPT = "stty raw -echo; echo begin; exec cat"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._keys, self._screen = process.stdin.fileno(), process.stdout.fileno()
        until(process, _BEGIN)

    def press(self, key: bytes) -> float:
        """Seconds from a key to its echo."""
        started = time.perf_counter()
        os.write(self._keys, key)
        if not select.select([self._screen], [], [], LONG_WAIT)[0]:
            raise RuntimeError("a key was not echoed")
        shown = os.read(self._screen, 64)
        taken = time.perf_counter() - started
        if shown != key:
            raise RuntimeError(f"{key!r} was echoed as {shown!r}")
        return taken


def until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Read until ``text`` has come; return what came behind it."""
    assert process.stdout is not None
    said = b""
    deadline = time.monotonic() + LONG_WAIT
    while text not in said:
        left = deadline - time.monotonic()
        ready = select.select([process.stdout], [], [], max(0.0, left))[0]
        part = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not part:
            raise RuntimeError(f"{text!r} was not said, but {said[-300:]!r}; {_complaint(process)}")
        said += part
    return said.partition(text)[2]


def _leave(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(words)
    process.wait(LONG_WAIT)


def _check(process: subprocess.Popen[bytes], right: bool, message: str) -> None:
    if process.wait(LONG_WAIT) or not right:
        raise RuntimeError(f"{message}; ssh ended {process.returncode}: {_complaint(process)}")


def _complaint(process: subprocess.Popen[bytes]) -> str:
    if process.poll() is None:
        process.kill()
    assert process.stderr is not None
    return process.stderr.read().decode(errors="replace").strip()
