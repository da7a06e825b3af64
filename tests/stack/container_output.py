"""What a command in a container says, to its real end."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from tests.support.waiting import LONG_WAIT

_ASK = '"$@"; code=$?; printf "%s%d." "$0" "$code"'


def heard_to_the_end(container: Any, *command: str, **how: Any) -> tuple[int, bytes]:
    """Return exit code and output of a command that may be repeated, as reading a file may.

    The stream of the engine's exec can be cut off, and then what came looks like all there was. So
    a shell in the container says when the command has ended; until that was heard it is run again.
    """
    end = f"end-{uuid.uuid4().hex}-"
    wanted = re.compile(rb"(.*)" + end.encode() + rb"(\d+)\.", re.DOTALL)
    deadline = time.monotonic() + LONG_WAIT
    while True:
        _, output = container.exec_run(["sh", "-c", _ASK, end, *command], **how)
        if heard := wanted.fullmatch(output or b""):
            return int(heard[2]), heard[1]
        assert time.monotonic() < deadline, f"{command} was not heard to its end: {output!r}"
        time.sleep(0.1)
