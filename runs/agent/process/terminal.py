"""A terminal for an interactive run: its two sides, its size, and whether typed text is shown."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Callable, Tuple

_LOCAL_FLAGS = 3
_CONTROL_CHARACTERS = 6


def open_terminal(columns: int, rows: int, owner: int) -> Tuple[int, int]:
    """Our side and the program's side of a new terminal, which the user `owner` may open too."""
    ours, program = os.openpty()
    resize(ours, columns, rows)
    try:
        os.fchown(program, owner, -1)
    except PermissionError:
        pass
    return ours, program


def resize(ours: int, columns: int, rows: int) -> None:
    """Set the size; the kernel tells the programs in the foreground."""
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def input_visibility(ours: int, policy: str) -> Callable[[], bool]:
    """Tells whether bytes typed now may be recorded under the policy.

    `masked`: while the terminal echoes, or a program reads key by key (an editor, a shell's line
    editor). A prompt for a password reads a line without echo.
    """

    def masked() -> bool:
        try:
            flags = int(termios.tcgetattr(ours)[_LOCAL_FLAGS])
        except termios.error:
            return False
        return bool(flags & termios.ECHO) or not flags & termios.ICANON

    return masked if policy == "masked" else lambda: policy == "full"


def end_of_file(ours: int) -> bytes:
    """What a person would type to end the input; nothing where a program reads key by key."""
    try:
        settings = termios.tcgetattr(ours)
    except termios.error:
        return b""
    if not settings[_LOCAL_FLAGS] & termios.ICANON:
        return b""
    return bytes(settings[_CONTROL_CHARACTERS][termios.VEOF])
