"""`agent tail`: a run's frames from a sequence on, until the record has ended and is acknowledged.

Output: one line of JSON that says where the spool stands, then frames as they lie in the spool, and
an empty frame after every five seconds without any. Input: acknowledgements, 8 bytes each (big
endian): everything up to that sequence is committed, and whole segments of it are freed. Any number
of these may run at once; only acknowledgements change anything. After 30 seconds without news PID 1
goes on with it, if it has started it (`resting.py`).

TERM, which comes when the container is to end, is no end here but a hint that the record's is near.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Optional, Tuple, Union

from .acks import acknowledge, read_acknowledged, remove_spool
from .frames import PREFIX
from .repair import has_writer, is_of_a_boot, repair
from .resting import KEEPALIVE, KEEPALIVE_SECONDS, Rest, offer, tell_of_a_write
from .segments import Reader, SpoolDamaged, last_written, list_segments, open_folder
from .spool_folder import DiskFull, SpoolFailed, identity_of

EXIT_MISSING = 4
EXIT_DAMAGED = 5

# After so many seconds without news, how often it looks for some, and whether the writer lives.
# Where the kernel tells of every write to the folder, it does not look for news by itself: hundreds
# of sessions may be open and idle for hours.
_LOOKS = ((2.0, 0.03, 1.0), (0.0, 0.01, 0.25))
_RESTS_AFTER_SECONDS = 30.0
_NEWS_AT_REST_SECONDS = 0.2
_BETWEEN_SENDS_SECONDS = 0.005
_LITTLE_BYTES = 16 * 1024
# How many little sends go out at once after so long without any: the beginning of a run, its first
# output and its end are what somebody waits for.
_HURRIED_SENDS = 3
_QUIET_SECONDS = 0.05
_BURST_BYTES = 8 * 1024 * 1024
_BYTES_PER_SECOND = 16 * 1024 * 1024
_LOOK_FOR_ROOM_SECONDS = 0.1
_ACK_SECONDS = 0.1
_ACK_BYTES = 8
# While a write is under way its bytes may look damaged for a moment.
_WAIT_SECONDS = 0.5


def tail(
    root: str, run_id: str, start: int, *, keepalive_seconds: float = KEEPALIVE_SECONDS
) -> int:
    """Stream the spool of a run to stdout; the exit codes are in the package's README."""
    hints = _Hints()
    try:
        directory = open_folder(os.path.join(root, run_id))
    except FileNotFoundError:
        return EXIT_MISSING
    return _passed_on(_Tail(hints, root, run_id, directory, start, keepalive_seconds))


def go_on(root: str, rest: Rest) -> int:
    """Go on with a tail that has rested."""
    hints = _Hints()
    try:
        directory = open_folder(os.path.join(root, rest.run_id))
    except FileNotFoundError:
        return 0  # another one was told of the last acknowledgement
    tail = _Tail(hints, root, rest.run_id, directory, rest.sequence, KEEPALIVE_SECONDS)
    return _passed_on(tail, rest)


def _passed_on(tail: _Tail, rest: Optional[Rest] = None) -> int:
    try:
        return tail.run(rest)
    except (SpoolDamaged, SpoolFailed) as error:
        print(f"agent: {error}", file=sys.stderr)
        return EXIT_DAMAGED
    except BrokenPipeError:
        return 0  # its reader is gone
    finally:
        tail.close()


class _Hints:
    """Signals, each of which makes `fd` readable: a container is to end, or a folder was written.

    The kernel tells of one write for each :meth:`arm` (dnotify, fcntl(2) F_NOTIFY): what a busy
    writer does meanwhile costs nothing.
    """

    def __init__(self) -> None:
        self._watched = -1
        self.fd, writing = os.pipe()
        for end in (self.fd, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
            signal.signal(number, lambda *_: None)  # the wakeup needs a handler
        # PID 1 has them blocked until here: it starts a tail again when the container is to end.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def watch(self, folder: str) -> None:
        """Be told of writes to the files of this folder from now on, each time after `arm`."""
        self._watched = open_folder(folder)

    def arm(self) -> bool:
        """Have the next write tell; False when the kernel does not tell of any."""
        if self._watched < 0:
            return False
        try:
            tell_of_a_write(self._watched)
        except OSError:
            os.close(self._watched)
            self._watched = -1
            return False
        return True

    def taken(self) -> bool:
        """Whether an end was announced since the last call."""
        try:
            return any(number != signal.SIGIO for number in os.read(self.fd, 4096))
        except BlockingIOError:
            return False


class Gathering:
    """How long to wait after a send for what follows, so that it need not be sent alone."""

    def __init__(self) -> None:
        self._hurried = 0
        self._sent_at = float("-inf")

    def pause(self, count: int, now: float) -> float:
        """How long to wait after so many bytes that were sent at `now`."""
        if now - self._sent_at >= _QUIET_SECONDS:
            self._hurried = 0
        self._sent_at = now
        if count >= _LITTLE_BYTES:
            return 0.0
        self._hurried += 1
        return 0.0 if self._hurried < _HURRIED_SENDS else _BETWEEN_SENDS_SECONDS


class Rounds:
    """When a tail that has nothing to send looks whether the writer lives, and says that it does.

    After 30 s without news it does both together, so that it wakes once in `keepalive_seconds`.
    """

    def __init__(self, keepalive_seconds: float, now: float) -> None:
        self._keepalive_seconds = keepalive_seconds
        self._active = self._looked = self._spoke = now

    def sent(self, now: float) -> None:
        """Something was passed on."""
        self._active = self._spoke = now

    def rests(self, now: float) -> bool:
        """Whether there has been nothing for long."""
        return now - self._active >= _RESTS_AFTER_SECONDS

    def expects(self, now: float) -> None:
        """News are expected soon."""
        self._active = now

    def looks(self, now: float) -> bool:
        """Whether to look now; if so, the next look is due an interval later."""
        if now < self._look_due(now):
            return False
        self._looked = now
        return True

    def speaks(self, now: float) -> bool:
        """Whether to say now that it lives; asked after `looks`."""
        if now < self._spoke + self._keepalive_seconds:
            return False
        self._spoke = now
        return True

    def pause(self, now: float, *, told: bool, sealed: bool = False) -> float:
        """How long to wait. `told`: the kernel tells of news; `sealed`: there will be none."""
        if told and not sealed:
            due = min(self._look_due(now), self._spoke + self._keepalive_seconds)
            return max(0.0, due - now)
        idle = now - self._active
        if idle >= _RESTS_AFTER_SECONDS:
            return _NEWS_AT_REST_SECONDS
        return next(news for since, news, _ in _LOOKS if idle >= since)

    def _look_due(self, now: float) -> float:
        idle = now - self._active
        if idle >= _RESTS_AFTER_SECONDS:
            return self._spoke + self._keepalive_seconds
        return self._looked + next(writer for since, _, writer in _LOOKS if idle >= since)


class Pace:
    """How fast a record is passed on while its run writes much.

    Storing a record takes more of a machine than writing it. So behind a burst there is a limit,
    for as long as the run goes on and its spool has room: what it does comes first.
    """

    def __init__(self, root: str, run_id: str, directory: int) -> None:
        identity = identity_of(directory)
        self._folder = os.path.join(root, run_id)
        self._directory = directory
        self._segments = int(identity["spoolBytes"]) // int(identity["segmentBytes"]) // 2
        self._allowance = float(_BURST_BYTES)
        self._at = time.monotonic()
        self._looked = 0.0
        self._gives_way = False

    def pause(self, count: int) -> float:
        """How long to wait after so many bytes."""
        now = time.monotonic()
        allowance = self._allowance + (now - self._at) * _BYTES_PER_SECOND
        self._allowance, self._at = min(float(_BURST_BYTES), allowance) - count, now
        if self._allowance >= 0:
            return 0.0
        if now - self._looked >= _LOOK_FOR_ROOM_SECONDS:
            self._looked = now
            roomy = len(list_segments(self._directory)) < self._segments
            self._gives_way = roomy and has_writer(self._folder)
        if not self._gives_way:
            self._allowance = 0.0
        return -self._allowance / _BYTES_PER_SECOND


class _Tail:
    def __init__(
        self,
        hints: _Hints,
        root: str,
        run_id: str,
        directory: int,
        start: int,
        keepalive_seconds: float,
    ) -> None:
        self._hints = hints
        self._hinted = False
        self._root = root
        self._run_id = run_id
        self._directory = directory
        self._start = start
        self._keepalive_seconds = keepalive_seconds
        self._sealed_at = 0
        self._cut_off_at = 0
        self._send_at = 0.0
        self._gathering = Gathering()
        self._acked = read_acknowledged(directory)
        # What somebody has committed; a full disk may have no room to remember it.
        self._committed = self._acked
        self._claimed = 0
        self._ack_at = 0.0
        self._ack_bytes = b""
        self._input_open = True
        self._is_boot = is_of_a_boot(directory)
        self._may_rest = True

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._directory)

    def run(self, rest: Optional[Rest]) -> int:
        self._repair()
        self._hints.watch(os.path.join(self._root, self._run_id))
        if rest is None:
            self._greet()
        self._reader = Reader(self._directory, self._start)
        if rest is not None:
            self._reader.go_on(rest.segment, rest.offset, rest.sequence)
        self._pace = Pace(self._root, self._run_id, self._directory)
        rounds = Rounds(self._keepalive_seconds, time.monotonic())
        damaged_since = 0.0
        while True:
            told = False
            try:
                sent = self._send()
                if not sent and not damaged_since and self._hints.arm():
                    # What was written before that tells nobody.
                    told, sent = True, self._send()
                damaged_since = 0.0
            except SpoolDamaged:
                now = time.monotonic()
                damaged_since = damaged_since or now
                # The writer may be in the middle of it; if it is dead, the tail of it is cut.
                if not self._repair() and now - damaged_since >= _WAIT_SECONDS:
                    raise
                sent = False
            now = time.monotonic()
            if sent:
                rounds.sent(now)
            elif self._hinted:
                rounds.expects(now)
                self._hinted = False
            if not sent and not self._sealed_at and rounds.looks(now):
                self._repair()
                if self._is_gone():
                    return 0
                self._check_end()
            if rounds.speaks(now):
                _write(KEEPALIVE)
            if not sent and not self._input_open:
                return 0
            if told and rounds.rests(now) and self._rests():
                return 0
            sealed = bool(self._sealed_at)
            self._take_acks(0.0 if sent else rounds.pause(now, told=told, sealed=sealed))
            while time.monotonic() < self._send_at:
                self._take_acks(max(0.0, self._send_at - time.monotonic()))
            if self._sealed_at and (self._acked >= self._sealed_at or self._is_gone()):
                if self._acked >= self._sealed_at:
                    remove_spool(self._root, self._run_id)
                return 0

    def _rests(self) -> bool:
        """Whether PID 1 goes on with it. What was acknowledged has to be remembered before."""
        if self._sealed_at or self._ack_bytes or self._claimed > self._acked or not self._may_rest:
            return False
        reader = self._reader
        place = reader.next_sequence, reader.segment, reader.offset
        self._may_rest = offer(self._root, Rest(self._run_id, *place, self._is_boot))
        return self._may_rest

    def _greet(self) -> None:
        identity = identity_of(self._directory)
        segments = list_segments(self._directory)
        if not segments:
            raise SpoolDamaged("the spool has no segment")
        last, sealed = measure(self._directory)
        line = {
            "version": 1,
            "runId": self._run_id,
            "spoolId": identity["spoolId"],
            "first": segments[0].first,
            "last": last,
            "sealed": sealed,
        }
        _write(json.dumps(line).encode("ascii") + b"\n")

    def _send(self) -> bool:
        """Pass on what is new, up to one read's worth; whether there was any."""
        batch = self._reader.read()
        if batch is None:
            return False
        data = batch.data
        if batch.last >= self._start:
            skipped = self._start - batch.first
            _write(data[_end_of(data, skipped) :] if skipped > 0 else data)
        now = time.monotonic()
        pause = max(self._pace.pause(len(data)), self._gathering.pause(len(data), now))
        self._send_at = now + pause
        if batch.sealed:
            # Also when the reader has it already: only the acknowledgement was lost then.
            self._sealed_at = batch.last
        return True

    def _check_end(self) -> None:
        """Raise SpoolDamaged when others follow the segment, and since the last look it ended here.

        What is acknowledged may be gone: an outage took it, or it is being freed.
        """
        at, segments = self._reader.next_sequence, list_segments(self._directory)
        following = next((each.first for each in segments if each.first > at), 0)
        cut_off_at = at if following - 1 > read_acknowledged(self._directory) else 0
        if cut_off_at and cut_off_at == self._cut_off_at:
            raise SpoolDamaged(f"cut off, and more follows: {self._reader.place}")
        self._cut_off_at = cut_off_at

    def _repair(self) -> bool:
        """Whether a dead writer's spool has just been sealed."""
        # PID 1 may be about to go on with its own after a restart.
        if self._is_boot or self._is_gone():
            return False
        try:
            return repair(self._root, self._run_id)
        except DiskFull:
            # All that was written is sound. Each look tries again: what is freed may make the room.
            if self._committed >= measure(self._directory)[0]:
                raise  # nothing is left that could be freed, or that waiting could save
            return False

    def _is_gone(self) -> bool:
        """Whether another one was told of the last acknowledgement, and has removed the spool."""
        try:
            there = os.stat(os.path.join(self._root, self._run_id))
        except FileNotFoundError:
            return True
        return there.st_ino != os.fstat(self._directory).st_ino

    def _take_acks(self, wait: float) -> None:
        inputs = [0, self._hints.fd] if self._input_open else [self._hints.fd]
        ready = select.select(inputs, [], [], wait)[0]
        if self._hints.fd in ready:
            self._hinted |= self._hints.taken()
        if 0 in ready:
            chunk = os.read(0, 65536)
            self._input_open = bool(chunk)
            self._ack_bytes += chunk
            while len(self._ack_bytes) >= _ACK_BYTES:
                number = int.from_bytes(self._ack_bytes[:_ACK_BYTES], "big")
                self._ack_bytes = self._ack_bytes[_ACK_BYTES:]
                self._claimed = max(self._claimed, number)
        # An acknowledgement of what is not here is none.
        acked = min(self._claimed, self._reader.next_sequence - 1)
        if acked <= self._acked:
            return
        now = time.monotonic()
        if now >= self._ack_at or acked == self._sealed_at or not self._input_open:
            self._ack_at = now + _ACK_SECONDS
            if acked == self._sealed_at:
                # An end that is committed must not get lost and be written a second time.
                self._reader.sync()
            self._acked = acknowledge(self._directory, acked)
            self._committed = acked


def measure(directory: int) -> Tuple[int, bool]:
    """The last whole frame's sequence, and whether it seals the record."""
    reader = Reader(directory, last_written(directory))
    sealed = False
    try:
        while True:
            batch = reader.read()
            if batch is None:
                break
            sealed = batch.sealed
    except SpoolDamaged:
        pass
    finally:
        reader.close()
    return reader.next_sequence - 1, sealed


def _end_of(data: memoryview, count: int) -> int:
    """Where the frame after the first `count` ones begins."""
    at = 0
    for _ in range(count):
        at += PREFIX.size + int(PREFIX.unpack_from(data, at)[0])
    return at


def _write(data: Union[bytes, memoryview]) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]
