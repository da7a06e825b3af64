"""Calls of the agent in Pods, one after the other over execs that are kept for a while.

To begin an exec takes the API server, the node and its runtime about a tenth of a second; a call
that finds one takes a few milliseconds. What it says comes in frames (``relay.py``), so that its
end is not the end of the exec. Calls at the same time have an exec each.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from controlplane.subprocesses import Tail
from workspaces.runtimes.base import AgentAnswer, LaunchError
from workspaces.runtimes.kubernetes.cluster import Cluster
from workspaces.runtimes.kubernetes.pod_channel import ERROR_TAIL_BYTES, ExecChannel, all_of
from workspaces.runtimes.kubernetes.pods import RELAY, WORKSPACE

KEPT_SECONDS = 45.0
"""For how long an exec is kept; the other side gives it up after 90 s without a word."""
MOST_OF_A_POD = 4
MOST_KEPT = 128

_PYTHON = ("/usr/bin/python3", "-I", "-S", RELAY)
# A Pod that just starts has its relay a moment later.
_AWAITED = ("/bin/sh", "-c", 'until [ -e "$4" ]; do sleep 0.02; done; exec "$@"', "await", *_PYTHON)
_ENDED, _OUTPUT, _ERRORS = range(3)
_HEAD = struct.Struct("!BI")


def relay_command(arguments: Sequence[str]) -> list[str]:
    """Return what an exec of one call of the agent runs."""
    return [*_PYTHON, *arguments]


class AgentExecs:
    """The execs to the Pods of a namespace. Safe to use from several threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._kept: dict[str, list[tuple[ExecChannel, float]]] = {}

    def open(
        self, pod: str, request: Mapping[str, object] | Sequence[str], *, timeout: float
    ) -> AgentCall:
        """Start the agent with arguments in a Pod, or what else the relay knows.

        Raises ``runtime-gone``, ``runtime-not-running``, and ``adapter-unavailable``.
        """
        asked = request if isinstance(request, Mapping) else {"arguments": list(request)}
        channel = self._take(pod) or self._begin(pod, timeout)
        return AgentCall(channel, asked, lambda: self._keep(pod, channel))

    def call(
        self,
        pod: str,
        request: Mapping[str, object] | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        cancelled: Callable[[], bool] | None = None,
    ) -> AgentAnswer | None:
        """Run it to its end and return its answer; None when that takes longer."""
        deadline = time.monotonic() + timeout
        with contextlib.closing(self.open(pod, request, timeout=timeout)) as call:
            return call.answer(stdin, max(0.0, deadline - time.monotonic()), cancelled=cancelled)

    def reach(self, pod: str, *, timeout: float) -> None:
        """Have an exec for the next call of a Pod; raises as ``open`` does."""
        self._keep(pod, self._begin(pod, timeout))

    def forget(self, pod: str) -> None:
        """Give up what is kept of a Pod that goes away."""
        with self._lock:
            kept = self._kept.pop(pod, [])
        for channel, _ in kept:
            channel.close()

    def close(self) -> None:
        """Give up all that is kept."""
        with self._lock:
            pods = list(self._kept)
        for pod in pods:
            self.forget(pod)

    def _begin(self, pod: str, timeout: float) -> ExecChannel:
        cluster = self._cluster
        return ExecChannel.open(
            cluster.access, cluster.namespace, pod, WORKSPACE, _AWAITED, timeout=timeout
        )

    def _take(self, pod: str) -> ExecChannel | None:
        while True:
            with self._lock:
                kept = self._kept.get(pod)
                if not kept:
                    return None
                channel, until = kept.pop()
                if not kept:
                    del self._kept[pod]
            if time.monotonic() < until and channel.is_quiet():
                return channel
            channel.close()

    def _keep(self, pod: str, channel: ExecChannel) -> None:
        now = time.monotonic()
        with self._lock:
            kept = self._kept.setdefault(pod, [])
            kept.append((channel, now + KEPT_SECONDS))
            over = [kept.pop(0)] if len(kept) > MOST_OF_A_POD else []
            for name in list(self._kept):
                while self._kept[name] and self._kept[name][0][1] <= now:
                    over.append(self._kept[name].pop(0))
                if not self._kept[name]:
                    del self._kept[name]
            if sum(map(len, self._kept.values())) > MOST_KEPT:
                over += self._kept.pop(next(iter(self._kept)))
        for each, _ in over:
            each.close()


class AgentCall:
    """One call of the agent (``AgentChannel``): one reader, one writer; any may close.

    ``give_back`` takes the exec when the call has ended in order.
    """

    def __init__(
        self, channel: ExecChannel, request: Mapping[str, object], give_back: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._give_back = give_back
        self._frames = CallFrames()
        self._input_open = True
        self._closed = False
        self._writing = threading.Lock()
        channel.post(json.dumps(request, ensure_ascii=False).encode())

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next bytes of its output, ``b""`` at the end, None when none came in time.

        Also None when the descriptor ``wake`` becomes readable first.
        """
        deadline = time.monotonic() + timeout
        while self._frames.exit_code is None:
            data = self._channel.read(max(0.0, deadline - time.monotonic()), wake=wake)
            if not data:
                return data
            if found := self._frames.feed(data):
                return found
        return b""

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Give it all of ``data`` as input; waits while it does not take any.

        Raises ``adapter-unavailable`` when the connection is lost, and ``agent-silent`` when
        nothing is taken for ``timeout`` seconds, or not all of it ``within`` so many.
        """
        with self._writing:
            if self._input_open and data:
                self._channel.write(data, timeout=timeout, within=within)

    def post(self, data: bytes, *, end: bool = False) -> None:
        """Have ``data`` sent while its output is read, and then the ``end`` of its input."""
        with self._writing:
            self._input_open = self._input_open and not end
            self._channel.post(data, end=end)

    def close_input(self) -> None:
        """End its input."""
        with self._writing:
            if self._input_open:
                self._input_open = False
                self._channel.close_input()

    def answer(
        self, stdin: bytes, timeout: float, *, cancelled: Callable[[], bool] | None = None
    ) -> AgentAnswer | None:
        """Give it ``stdin`` and return what it says until its end; None when that takes longer.

        None too when ``cancelled``, which is asked several times in a second.
        """
        said = all_of(self, stdin, timeout, cancelled)
        if said is None:
            return None
        if self._frames.exit_code is None:
            raise LaunchError("runtime-not-running", "The workspace's Pod ended meanwhile.")
        return AgentAnswer(self._frames.exit_code, said, self._frames.said.bytes())

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known any more."""
        return self._frames.exit_code

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        said = self._frames.said.bytes().decode("utf-8", "replace")
        return said or self._channel.errors()

    def close(self) -> None:
        """Give the call up, whatever the other side does; others' calls of this end."""
        if self._closed:
            return  # others may have the exec by now
        self._closed = True
        ended = self._frames.exit_code is not None and not self._frames.broken
        # Whoever still writes has the connection in a state that nobody else can go on from.
        if ended and self._writing.acquire(blocking=False):
            try:
                if self._input_open:
                    self._input_open = False
                    self._channel.close_input()
            finally:
                self._writing.release()
            self._give_back()
        else:
            self._channel.close()


class CallFrames:
    """What a relay says of one call, taken apart."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.broken = False
        self.said = Tail(ERROR_TAIL_BYTES)
        self._head = b""
        self._kind = self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Take what came and return what there is of the output in it."""
        output: list[bytes] = []
        at = 0
        while at < len(data):
            if not self._left:
                start, at = at, at + _HEAD.size - len(self._head)
                self._head += data[start:at]
                if len(self._head) == _HEAD.size:
                    self._begin()
            else:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._kind == _OUTPUT:
                    output.append(piece)
                else:
                    self.said.feed(piece)
            if self.exit_code is not None:
                # Nothing follows before the next call.
                self.broken = self.broken or at < len(data)
                break
        return output[0] if len(output) == 1 else b"".join(output)

    def _begin(self) -> None:
        self._kind, number = _HEAD.unpack(self._head)
        self._head = b""
        if self._kind in (_OUTPUT, _ERRORS):
            self._left = number
        else:
            self.exit_code = number & 0xFF
            self.broken = self._kind != _ENDED
