"""Input for the program of a one-shot run, from outside, each byte and each signal exactly once.

What is given has numbers: bytes by their offset in the input, everything by its position. So it
may be given again, by somebody who does not know how far an earlier one came. Signals and sizes
overtake bytes that the program does not take.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
from typing import Any, Callable, Dict, List, Optional

from .leader import Leader
from .stop import GivenInput, send_request, signal_number

EXIT_REFUSED = 2
EXIT_UNKNOWN = 4

WAITING_BYTES = 2 * 1024 * 1024
"""So many bytes may wait for the program; more is not taken."""
_ANSWER_SECONDS = 10.0


class RunInput:
    """What has been given to a run's program so far."""

    def __init__(self, first: Optional[bytes]) -> None:
        self.received = len(first or b"")
        """Bytes from the beginning of the input."""
        self._ended = False
        self._position = 0
        """The last signal or size that was carried out."""

    def take(self, given: GivenInput, leader: Optional[Leader]) -> None:
        """Give the program what there is room for, and say how far that was."""
        try:
            answer = self._answer(given, leader)
            os.write(given.answer, json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError):
            pass  # whoever asked has gone, or makes no sense
        finally:
            given.close()

    def _answer(self, given: GivenInput, leader: Optional[Leader]) -> Dict[str, Any]:
        if leader is None or leader.exit is not None:
            return {"state": "over"}
        items: List[Dict[str, Any]] = json.loads(
            os.pread(given.content, os.fstat(given.content).st_size, 0)
        )
        done, waits = 0, False
        for item in items:
            if item["kind"] in ("bytes", "end"):
                waits = waits or not self._give(item, leader)
            elif item["position"] > self._position:
                self._control(item, leader)
                self._position = item["position"]
            if not waits:
                done = item["position"]
        return {"state": "taken", "position": done, "received": self.received}

    def _give(self, item: Dict[str, Any], leader: Leader) -> bool:
        """Whether all of it is given now; that of an input that is closed is given to nobody."""
        if leader.input is None or leader.input.closed or self._ended:
            return True
        if item["kind"] == "end":
            self._ended = True
            leader.end_input()
            return True
        data = base64.b64decode(item["data"])[max(0, self.received - item["offset"]) :]
        part = data[: max(0, WAITING_BYTES - leader.input.pending)]
        leader.give(part)
        self.received += len(part)
        return len(part) == len(data)

    def _control(self, item: Dict[str, Any], leader: Leader) -> None:
        if item["kind"] == "resize":
            leader.resize(item["columns"], item["rows"])
        else:
            number = signal_number(item["signal"])
            if number is not None:
                leader.signal(number, "client")


def give(state_directory: str, run_id: str, read: Callable[[int], bytes]) -> int:
    """`agent input`: hand what is on stdin to the run's supervisor, and print its answer."""
    content = os.memfd_create("input", os.MFD_CLOEXEC)
    answer_read, answer_write = os.pipe()
    try:
        left = memoryview(read(0))
        while left:
            left = left[os.write(content, left) :]
        # Without its descriptors, which may find no room there, it must not be a request to stop.
        send_request(os.path.join(state_directory, "runs"), run_id, b"[]", [content, answer_write])
    except OSError as error:
        print(f"agent: the run {run_id} is not open: {error.strerror}", file=sys.stderr)
        return EXIT_UNKNOWN
    finally:
        os.close(content)
        os.close(answer_write)
    poll = select.poll()
    poll.register(answer_read, select.POLLIN)
    line = os.read(answer_read, 65536) if poll.poll(_ANSWER_SECONDS * 1000) else b""
    os.close(answer_read)
    if not line:
        print(f"agent: the run {run_id} did not answer", file=sys.stderr)
        return EXIT_UNKNOWN
    os.write(1, line)
    return 0
