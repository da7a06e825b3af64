"""Work on a workspace's files in a forked child that has become the user, within a time limit.

Root would read through a symbolic link what the user may not, and a repository may name programs
to be run. The child has only the user's rights; when it is late it ends with all that it started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import time
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from ..process.program import Account, load_prctl
from ..process.signals import restore_defaults

_LENGTHS = struct.Struct("!II")
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 20

Message = Tuple[Dict[str, Any], bytes]
Send = Callable[[Dict[str, Any], bytes], None]


class HelperFailed(Exception):
    """What the message says went wrong; `messages` came before that."""

    def __init__(self, message: str, messages: List[Message]) -> None:
        super().__init__(message)
        self.messages = messages


def ask(account: Account, seconds: float, work: Callable[[Send], None]) -> List[Message]:
    """What `work` sends when it runs as the user; raises HelperFailed, also when it is late."""
    read_fd, write_fd = os.pipe()
    prctl = load_prctl()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _serve(account, work, write_fd, prctl, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write_fd)
    try:
        content, in_time = _read_until(read_fd, time.monotonic() + seconds)
    finally:
        os.close(read_fd)
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # It has not come as far as its own group.
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    messages = _messages(content)
    if not in_time:
        raise HelperFailed(f"not finished within {seconds:g} seconds", messages)
    if not messages or "end" not in messages[-1][0]:
        raise HelperFailed("the helper ended early", messages)
    error = messages.pop()[0]["end"]
    if error is not None:
        raise HelperFailed(str(error), messages)
    return messages


def _serve(
    account: Account,
    work: Callable[[Send], None],
    write_fd: int,
    prctl: Callable[[int, int], int],
    mask: Any,
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        restore_defaults()
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.umask(0o077)
        account.assume()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        def send(message: Dict[str, Any], body: bytes = b"") -> None:
            head = json.dumps(message).encode("ascii")
            view = memoryview(_LENGTHS.pack(len(head), len(body)) + head + body)
            while view:
                view = view[os.write(write_fd, view) :]

        try:
            work(send)
        except Exception as error:
            send({"end": str(error) or type(error).__name__}, b"")
        else:
            send({"end": None}, b"")
        code = 0
    finally:
        # Nothing of the parent's may run here, whatever happens.
        os._exit(code)


def _read_until(fd: int, deadline: float) -> Tuple[bytes, bool]:
    parts: List[bytes] = []
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return b"".join(parts), False
        if poll.poll(int(left * 1000) + 1):
            part = os.read(fd, _READ_BYTES)
            if not part:
                return b"".join(parts), True
            parts.append(part)


def _messages(content: bytes) -> List[Message]:
    found: List[Message] = []
    start = 0
    while start + _LENGTHS.size <= len(content):
        head_length, body_length = _LENGTHS.unpack_from(content, start)
        body_start = start + _LENGTHS.size + head_length
        end = body_start + body_length
        if end > len(content):
            break
        head = json.loads(content[start + _LENGTHS.size : body_start])
        found.append((head, content[body_start:end]))
        start = end
    return found
