"""The client of a session as the run's loop sees it: its frames, and the channels they are for.

A frame is obeyed when it arrives, so a signal or another size overtakes input that a program does
not take; what waits for the programs is bounded by the windows. A client that is gone is hung up
on; one that has left with DETACH lets everything go on.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Dict, List, Optional, Tuple

from ..execution.execution import Execution
from ..execution.runspec import cells
from ..execution.stop import signal_number
from ..process.gateway_client import Client, Watch
from ..strict import ConfigError
from .channel import WINDOW, ChannelError, Frame, FrameReader, FrameWriter, FromClient, ToClient
from .channel_set import Channel, ProgramChannel
from .forwards import Forward
from .session_requests import (
    BAD_REQUEST,
    START_FAILED,
    TOO_MANY,
    Refusal,
    parse_request,
    program_of,
)

MOST_CHANNELS = 256
_SLOW_BYTES = 256 * 1024
# A client that does not read the answers to what it asks is not asked for more.
_DEAF_BYTES = 8 * 1024 * 1024
# Each of them may leave an event, for which a spool that is full has only its reserve.
_MOST_WITHOUT_ROOM = 1000
_LEAVE_EVENTS = (FromClient.RESIZE, FromClient.SIGNAL, FromClient.OPEN, FromClient.CLOSE)
_LAST_READS = 32
_LAST_WORDS_SECONDS = 30.0
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


class FrameConnection(Client):
    """Serves a client from READY on; what is opened for it, whoever derives from this decides."""

    def __init__(self, reader: FrameReader, writer: FrameWriter) -> None:
        os.set_blocking(reader.fd, False)
        os.set_blocking(writer.fd, False)
        self._reader = reader
        self._writer = writer
        self._gone = False
        self._detached = False
        self._channels: Dict[int, Channel] = {}
        self._forwards: Dict[int, Forward] = {}
        self._highest = 0
        self._without_room = 0

    def open(self, number: int, payload: bytes) -> None:
        """Open a channel as OPEN asks for it. Raises Refusal."""
        raise Refusal(BAD_REQUEST, "nothing can be opened here")

    def hang_up(self) -> None:
        """The client is gone without DETACH."""

    def greet(self, told: Dict[str, Any]) -> None:
        """Tell the client that it may begin."""
        self._tell(0, ToClient.READY, told)
        self._writer.flush()

    def begin(self) -> None:
        """Obey what the client has sent together with the spec, which wakes nobody."""
        self._take_frames()

    def say_goodbye(self) -> None:
        """Give a slow client some time for the last frames."""
        timeout = _LAST_WORDS_SECONDS if self.listens else 0.0
        deadline = time.monotonic() + timeout
        self._writer.flush()
        while self._writer.pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            poll = select.poll()
            poll.register(self._writer.fd, select.POLLOUT)
            if any(events & _BROKEN for _, events in poll.poll(int(left * 1000) + 1)):
                return
            self._writer.flush()

    # For the run's loop.

    def is_over(self) -> bool:
        return not self.listens and not self._forwards

    def accepts(self) -> bool:
        return not self.listens or self._writer.pending < _SLOW_BYTES

    def watches(self, accepts: bool) -> List[Watch]:
        watches: List[Watch] = []
        if not self._writer.broken:
            events = select.POLLOUT if self._writer.pending else 0
            watches.append((self._writer.fd, events, self._can_write))
        if not self._reader.ended:
            if accepts:
                self._without_room = 0
            may_read = self._without_room < _MOST_WITHOUT_ROOM
            may_read = may_read and self._writer.pending < _DEAF_BYTES
            events = select.POLLIN if may_read else 0
            watches.append((self._reader.fd, events, self._can_read))
        may_read = self.accepts()
        for forward in self._forwards.values():
            watches += forward.watches(may_read)
        return watches

    def deadline(self) -> Optional[float]:
        due = [forward.deadline for forward in self._forwards.values()]
        return min((moment for moment in due if moment is not None), default=None)

    def tick(self) -> None:
        if self._forwards:
            now = time.monotonic()
            for forward in list(self._forwards.values()):
                forward.expire(now)
        self._writer.flush()
        if self._writer.broken:
            self._lose_reader()

    def stop(self) -> None:
        for forward in list(self._forwards.values()):
            forward.end("stop")

    # For the channels.

    @property
    def listens(self) -> bool:
        """Whether the client is there to be given output."""
        return not self._gone and not self._detached

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Append a frame to what is sent."""
        if not self.listens and self._writer.pending >= _SLOW_BYTES:
            self._writer.give_up()
        self._writer.send(kind, channel, payload)

    def flush(self) -> None:
        """Send now."""
        self._writer.flush()

    def forget(self, channel: int) -> None:
        """The channel is over."""
        self._channels.pop(channel, None)
        self._forwards.pop(channel, None)

    # The client's frames.

    def _can_write(self, events: int) -> None:
        if events & _BROKEN:
            self._writer.give_up()
            self._lose_reader()
        else:
            self._writer.flush()

    def _can_read(self, events: int) -> None:
        self._reader.read()
        self._take_frames()

    def _take_frames(self) -> None:
        try:
            while True:
                frame = self._reader.take()
                if frame is None:
                    break
                self._obey(frame)
        except ChannelError as error:
            self._tell(0, ToClient.ERROR, {"message": str(error)})
            self._reader.ended = True
        if self._reader.ended:
            self._lose_client()

    def _obey(self, frame: Frame) -> None:
        if frame.type in _LEAVE_EVENTS:
            self._without_room += 1
        if frame.type == FromClient.DETACH:
            self._detach()
        elif frame.type == FromClient.OPEN:
            self._open(frame)
        elif frame.type == FromClient.SPEC or frame.type > FromClient.CLOSE:
            raise ChannelError(f"a frame of the type {frame.type}, which has no meaning here")
        elif not 0 < frame.channel <= self._highest:
            raise ChannelError(f"a frame for the channel {frame.channel}, which was never opened")
        elif frame.channel in self._channels:
            self._pass_on(frame, self._channels[frame.channel])
        # What was for a channel that is over has crossed the word of its end.

    def _pass_on(self, frame: Frame, channel: Channel) -> None:
        kind, payload = frame.type, frame.payload
        if kind == FromClient.DATA:
            channel.take(payload)
        elif kind == FromClient.EOF:
            channel.end_input()
        elif kind == FromClient.RESIZE:
            channel.resize(*_size(payload))
        elif kind == FromClient.SIGNAL:
            self._signal(channel, payload)
        elif kind == FromClient.WINDOW:
            channel.widen(_count(payload))
        else:
            channel.close()

    def _signal(self, channel: Channel, payload: bytes) -> None:
        name = payload.decode("ascii", "replace")
        number = signal_number(name)
        if number is None:
            message = f"there is no signal {name[:32]!r}"
            self._tell(channel.number, ToClient.ERROR, {"message": message})
        else:
            channel.signal(number)

    def _open(self, frame: Frame) -> None:
        number = frame.channel
        if number <= self._highest:
            raise ChannelError(f"the channel {number} cannot be opened: channels count up")
        self._highest = number
        try:
            if len(self._channels) >= MOST_CHANNELS:
                raise Refusal(TOO_MANY, f"{MOST_CHANNELS} channels are open")
            self.open(number, frame.payload)
        except Refusal as refusal:
            refused = {"code": refusal.code, "message": str(refusal)}
            self._tell(number, ToClient.REFUSED, refused)

    def _keep(self, forward: Forward) -> None:
        if not forward.is_over:
            self._channels[forward.number] = self._forwards[forward.number] = forward

    # The client's end.

    def _detach(self) -> None:
        self._detached = True
        self._leave()

    def _lose_reader(self) -> None:
        """Nobody reads any longer; what the client has sent before, perhaps DETACH, counts."""
        if not self.listens:
            return
        for _ in range(_LAST_READS):
            if self._reader.ended or not self._reader.read():
                break
        self._take_frames()
        self._lose_client()

    def _lose_client(self) -> None:
        if self.listens:
            self._gone = True
            self._leave()
            self.hang_up()

    def _leave(self) -> None:
        """What is only for the client ends with it."""
        for channel in list(self._channels.values()):
            channel.leave()

    def _tell(self, channel: int, kind: int, value: Dict[str, Any]) -> None:
        self.send(kind, channel, json.dumps(value).encode())


class Connection(FrameConnection):
    """Serves the client of one session from READY on."""

    def __init__(self, execution: Execution, reader: FrameReader, writer: FrameWriter) -> None:
        super().__init__(reader, writer)
        self._execution = execution

    def hang_up(self) -> None:
        self._execution.hang_up()

    def open(self, number: int, payload: bytes) -> None:
        execution = self._execution
        if execution.is_ending or not self.listens:
            raise Refusal(START_FAILED, "the run is being ended")
        try:
            request = parse_request(payload)
        except ConfigError as error:
            raise Refusal(BAD_REQUEST, str(error)) from None
        if request.kind == "forward":
            self._keep(Forward(self, number, execution.recording, request.host, request.port))
            return
        program = program_of(request, number, execution.account, execution.env)
        channel = ProgramChannel(self, number, execution.spec.grace_seconds)
        try:
            leader = execution.start_leader(program, channel)
        except OSError as error:
            raise Refusal(TOO_MANY, f"no more programs can be started: {error}") from None
        if leader.failure is not None:
            channel.discard()
            raise Refusal(START_FAILED, leader.failure)
        channel.leader = leader
        self._channels[number] = channel
        self._tell(number, ToClient.OPENED, {"process": leader.number})


def _size(payload: bytes) -> Tuple[int, int]:
    try:
        value = json.loads(payload)
        columns, rows = value["columns"], value["rows"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ChannelError('a resize is {"columns": n, "rows": n}') from None
    if not cells(columns) or not cells(rows):
        raise ChannelError("a terminal has between 1 and 65535 columns and rows")
    return columns, rows


def _count(payload: bytes) -> int:
    if len(payload) != WINDOW.size:
        raise ChannelError("a window is a number of 4 bytes")
    return int(WINDOW.unpack(payload)[0])
