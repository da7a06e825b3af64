"""`agent session`: an interactive run whose client talks through our stdin and stdout.

The first frame is the spec. A slow client slows the program, as a slow terminal would; one that is
gone is hung up on: HUP for the program, KILL after the grace, and everything is recorded to the
end. A client that leaves with DETACH lets the program go on.

What a program does not take yet is kept, so that a signal or another size reaches it past that: up
to 8 MiB, then the client waits too.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .channel import ChannelError, Frame, FrameReader, FrameWriter, FromClient, ToClient
from .client import Client
from .config import ConfigError, load
from .environment import account_of
from .exec_command import EXIT_NOT_RECORDED, EXIT_REFUSED, open_spool, runs_root
from .execution import Execution
from .frames import Stream
from .runspec import cells, parse_interactive
from .spool import SpoolExists, SpoolFailed
from .stop import signal_number
from .terminal import end_of_file

_SLOW_BYTES = 256 * 1024
_AT_THE_END_BYTES = 8 * 1024 * 1024
_INPUT_BYTES = 8 * 1024 * 1024
# Each of them may leave an event, for which a spool that is full has only its reserve.
_MOST_WITHOUT_ROOM = 1000
_LAST_READS = 32
_LAST_WORDS_SECONDS = 30.0
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


def converse(config_path: str, state_directory: str) -> int:
    """Serve one session from its spec to its end; returns the exit code of the process."""
    reader, writer = FrameReader(_taken(0, os.O_RDONLY)), FrameWriter(_taken(1, os.O_WRONLY))
    try:
        content = _receive_spec(reader)
        config = load(config_path)
        spec = parse_interactive(content)
        account_of(config)
    except (ConfigError, ChannelError) as error:
        return _refuse(writer, str(error), EXIT_REFUSED)
    try:
        spool = open_spool(spec, state_directory)
    except SpoolExists:
        return _refuse(writer, "the run exists already", EXIT_NOT_RECORDED)
    except (SpoolFailed, OSError) as error:
        return _refuse(writer, f"the run cannot be recorded: {error}", EXIT_NOT_RECORDED)
    execution = Execution(spec, config, spool, runs_root(state_directory))
    session = _Session(execution, reader, writer)
    execution.client = session
    execution.begin()
    execution.finish()
    session.say_goodbye()
    return 0


class _Session(Client):
    def __init__(self, execution: Execution, reader: FrameReader, writer: FrameWriter) -> None:
        os.set_blocking(reader.fd, False)
        os.set_blocking(writer.fd, False)
        self._execution = execution
        self._reader = reader
        self._writer = writer
        self._gone = False
        self._detached = False
        self._without_room = 0

    def accepts(self, *, at_the_end: bool) -> bool:
        limit = _AT_THE_END_BYTES if at_the_end else _SLOW_BYTES
        return self._gone or self._detached or self._writer.pending < limit

    def output(self, stream: int) -> Optional[Callable[[bytes], None]]:
        kind = ToClient.STDERR if stream == Stream.STDERR else ToClient.STDOUT

        def send(data: bytes) -> None:
            if (self._gone or self._detached) and self._writer.pending >= _SLOW_BYTES:
                self._writer.give_up()
            self._writer.send(kind, data)
            if self._writer.broken:
                self._lose_reader()

        return send

    def started(self) -> None:
        self._say(ToClient.READY, {"spoolId": self._execution.recording.writer.spool_id})
        # What came together with the spec wakes nobody.
        self._take_frames()

    def poll_events(self, read: bool) -> List[Tuple[int, int]]:
        waited_for = []
        if not self._writer.broken:
            waited_for.append((self._writer.fd, select.POLLOUT if self._writer.pending else 0))
        if not self._reader.ended:
            given = self._execution.input
            if read:
                self._without_room = 0
            may_read = self._without_room < _MOST_WITHOUT_ROOM
            may_read = may_read and (given is None or given.pending < _INPUT_BYTES)
            waited_for.append((self._reader.fd, select.POLLIN if may_read else 0))
        return waited_for

    def handle(self, fd: int, events: int) -> None:
        if fd == self._reader.fd:
            self._reader.read()
            self._take_frames()
        elif events & _BROKEN:
            self._writer.give_up()
            self._lose_reader()
        else:
            self._writer.flush()

    def ended(self, ending: Dict[str, Any]) -> None:
        self._say(ToClient.EXIT, ending)

    def say_goodbye(self) -> None:
        """Give a slow client some time for the last frames."""
        patience = 0.0 if self._gone or self._detached else _LAST_WORDS_SECONDS
        deadline = time.monotonic() + patience
        while self._writer.pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            poll = select.poll()
            poll.register(self._writer.fd, select.POLLOUT)
            if any(events & _BROKEN for _, events in poll.poll(int(left * 1000) + 1)):
                return
            self._writer.flush()

    def _take_frames(self) -> None:
        try:
            for frame in self._reader.frames():
                self._obey(frame)
        except ChannelError as error:
            self._say(ToClient.ERROR, {"message": str(error)})
            self._reader.ended = True
        if self._reader.ended:
            self._lose_client()

    def _obey(self, frame: Frame) -> None:
        given = self._execution.input
        self._without_room += 1
        if frame.type == FromClient.DATA:
            if given is not None:
                given.give(frame.payload)
        elif frame.type == FromClient.EOF:
            if given is not None and self._execution.spec.terminal is not None:
                given.give(end_of_file(self._execution.terminal))
            elif given is not None:
                given.end()
        elif frame.type == FromClient.RESIZE:
            self._execution.resize(*_size(frame.payload))
        elif frame.type == FromClient.SIGNAL:
            self._signal(frame.payload)
        elif frame.type == FromClient.DETACH:
            self._detached = True
        else:
            raise ChannelError(f"a frame of the unknown type {frame.type}")

    def _signal(self, payload: bytes) -> None:
        name = payload.decode("ascii", "replace")
        number = signal_number(name)
        if number is None:
            self._say(ToClient.ERROR, {"message": f"there is no signal {name[:32]!r}"})
        else:
            self._execution.signal_leader(number)

    def _lose_reader(self) -> None:
        """Nobody reads any longer; what the client has sent before, perhaps DETACH, counts."""
        if self._gone or self._detached:
            return
        for _ in range(_LAST_READS):
            if self._reader.ended or not self._reader.read():
                break
        self._take_frames()
        self._lose_client()

    def _lose_client(self) -> None:
        if not self._gone and not self._detached:
            self._gone = True
            self._execution.hang_up()

    def _say(self, kind: int, value: Dict[str, Any]) -> None:
        self._writer.send(kind, json.dumps(value).encode())


def _taken(fd: int, flags: int) -> int:
    """The channel under a number that no program inherits; the old one leads nowhere."""
    taken = os.dup(fd)
    null = os.open(os.devnull, flags)
    os.dup2(null, fd)
    os.close(null)
    return taken


def _receive_spec(reader: FrameReader) -> bytes:
    while True:
        for frame in reader.frames():
            if frame.type != FromClient.SPEC:
                raise ChannelError("the first frame must be the spec")
            return frame.payload
        if reader.ended:
            raise ChannelError("the channel ended before the spec")
        reader.read()


def _refuse(writer: FrameWriter, message: str, code: int) -> int:
    writer.send(ToClient.ERROR, json.dumps({"message": message}).encode())
    return code


def _size(payload: bytes) -> Tuple[int, int]:
    try:
        value = json.loads(payload)
        columns, rows = value["columns"], value["rows"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ChannelError('a resize is {"columns": n, "rows": n}') from None
    if not cells(columns) or not cells(rows):
        raise ChannelError("a terminal has between 1 and 65535 columns and rows")
    return columns, rows
