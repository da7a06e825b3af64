"""A client that is attached to the command of a run: its output, its input, and its end.

Output is what the record holds, by the offsets that the scrollback has. Input goes the way of
``POST /v1/runs/{id}/input``: it is committed with its place before more of it is read.
"""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from typing import Any

from django.db import InterfaceError, OperationalError
from rest_framework.request import Request
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage
from wsproto.frame_protocol import CloseReason

from controlplane.errors import Conflict, ControlPlaneError, Fault, ServiceUnavailable
from controlplane.errors import ValidationFailed as Invalid
from controlplane.http.problems import problem
from controlplane.http.stream_answers import AT_ONCE, StreamAnswer, Topic
from controlplane.http.web_sockets import WebSocketSource, web_socket_answer
from runs.agent.record.frames import STREAM_NAMES, Stream
from runs.attach.control_messages import ControlMessage, read_control
from runs.input.later import give_input
from runs.models import Run, RunInputHead
from runs.record.reading.output_tail import OutputPlace, output_state, place_at, read_tail
from runs.services import get_record, record_removed
from runs.streaming.of_run import LATEST, RUN_EVENTS

FULL_SECONDS = 0.25
"""After how long input is tried again that a program had no room for."""
TURN_SECONDS = 0.05
"""For how long what one client has sent is given, before others have their turn."""
GIVEN_BYTES = 256 * 1024
"""How much input is given at once."""
MAX_OFFSET_DIGITS = 18


def attach(
    request: Request, run: Run, *, after: str | None, after_stderr: str | None
) -> StreamAnswer:
    """Return the answer that attaches the client to the command of ``run``.

    Raises ``Conflict`` (``input-not-open``) for a run without a command of ours, ``Gone``
    (``record-removed``), ``ValidationFailed``, and as ``web_socket_answer`` does.
    """
    if not run.recorded or run.mode != Run.Mode.ONE_SHOT:
        raise Conflict("Clients cannot attach to a run of this kind.", code="input-not-open")
    get_record(run)
    place = _place(run, after, after_stderr)
    path = request.path_info
    request_id = str(getattr(request, "request_id", ""))
    return web_socket_answer(request, AttachedRun(run, place, path=path, request_id=request_id))


def _place(run: Run, after: str | None, after_stderr: str | None) -> OutputPlace:
    """Return where the output is to begin; raise ``ValidationFailed`` for what is no place."""
    terminal = "terminal" in (run.command or {})
    first, *others = [Stream.PTY_OUTPUT] if terminal else [Stream.STDOUT, Stream.STDERR]
    known = output_state(run.number, [first, *others])
    if after == LATEST:
        return OutputPlace(known.last_sequence, dict(known.ends))
    if terminal and after_stderr is not None:
        detail = "The run has a terminal, so it has no separate standard error."
        raise Invalid([Fault("invalid-cursor", detail, parameter="afterStderr")])
    offsets = {first: _offset("after", after, known.ends[first])}
    offsets |= {other: _offset("afterStderr", after_stderr, known.ends[other]) for other in others}
    return place_at(run.number, offsets, known)


def _offset(name: str, told: str | None, end: int) -> int:
    if told is None:
        return 0
    if not (told.isascii() and told.isdecimal() and len(told) <= MAX_OFFSET_DIGITS):
        detail = "A position in an output is a decimal number of bytes."
        raise Invalid([Fault("invalid-cursor", detail, parameter=name)])
    if int(told) > end:
        detail = f"The record has {end} bytes of this output."
        raise Invalid([Fault("invalid-cursor", detail, parameter=name)])
    return int(told)


class AttachedRun(WebSocketSource):
    """The command of one run, as one client sees it."""

    def __init__(self, run: Run, place: OutputPlace, *, path: str, request_id: str) -> None:
        super().__init__()
        self.topics = frozenset({Topic(RUN_EVENTS, str(run.number))})
        self._run = run
        self._place = place
        self._path = path
        self._request_id = request_id
        self._begun = False
        self._told: tuple[int, int] | None = None
        """The stream and offset of the byte that the client expects next."""
        self._noted: deque[ControlMessage | bytearray] = deque()
        self._input_offset: int | None = None
        """Where the next byte of the input belongs, if the client says so."""
        self._taken = 0
        """How far the input went when it was last known."""
        self._unsure = False
        """Whether the last input may be committed though nobody said so."""

    # ------------------------------------------------------------------ input

    def said(self, text: str) -> None:
        """Note what is asked for."""
        told = read_control(text)
        if self._noted and told.type in ("signal", "resize") and self._noted[-1] == told:
            return
        if self._noted and told.type == "resize" and _is_resize(self._noted[-1]):
            self._noted.pop()
        self._noted.append(told)

    def given(self, data: bytes) -> None:
        """Note input."""
        if self._noted and isinstance(self._noted[-1], bytearray):
            self._noted[-1] += data
        else:
            self._noted.append(bytearray(data))

    @property
    def noted_bytes(self) -> int:
        """How much input waits, and a little for each message."""
        return sum(
            len(each) if isinstance(each, bytearray) else 1_024 for each in list(self._noted)
        )

    def hand_over(self) -> float:
        """Give the program what was noted, in order; signals pass input that it has no room for."""
        if not self._noted:
            return 0.0
        if not self._begun and not self._unsure:
            self._taken = self._received_before()
        until = time.monotonic() + TURN_SECONDS
        self._run.refresh_from_db(fields=["status"])
        try:
            while self._noted:
                if self._give(self._noted[0]):
                    self._noted.popleft()
                if self._noted and time.monotonic() >= until:
                    return AT_ONCE
        except Conflict as error:
            if error.code != "run-ended":
                raise
            self._noted.clear()  # what the end says
        except ServiceUnavailable as error:
            if error.code != "input-full":
                raise
            self._overtake(until)
            return FULL_SECONDS
        return 0.0

    def _overtake(self, until: float) -> None:
        for each in list(self._noted):
            if time.monotonic() >= until:
                return
            if isinstance(each, ControlMessage) and each.type in ("signal", "resize"):
                self._give(each)
                self._noted.remove(each)

    def _give(self, noted: ControlMessage | bytearray) -> bool:
        """Give the program a message, or a part of it; tell whether that was all of it."""
        if isinstance(noted, bytearray):
            self._give_bytes(bytes(noted[:GIVEN_BYTES]))
            del noted[:GIVEN_BYTES]
            return not noted
        if noted.type == "input":
            self._input_offset = noted.members["offset"]
        elif noted.type == "input-end":
            give_input(self._run, {"end": True})
        elif noted.type == "resize":
            give_input(self._run, {"resize": noted.members})
        else:
            give_input(self._run, noted.members)
        return True

    def _give_bytes(self, data: bytes) -> None:
        values: dict[str, Any] = {"stdin_base64": base64.b64encode(data).decode()}
        if self._input_offset is not None:
            values["offset"] = self._input_offset
        elif self._unsure:
            values["offset"] = self._taken
        self._unsure = True
        try:
            self._taken = give_input(self._run, values).received
        except (OperationalError, InterfaceError):
            raise  # it is given again, from the same place on
        except ControlPlaneError:
            self._unsure = False
            raise
        self._unsure = False
        if self._input_offset is not None:
            self._input_offset += len(data)

    # ------------------------------------------------------------------ output

    def next_messages(self, room: int, since: float) -> tuple[list[Event], bool]:
        """Return the beginning, output, or the end."""
        events: list[Event] = []
        if not self._begun:
            events.append(self._start())
            self._begun = True
        tail = read_tail(self._run.number, self._place, room=room)
        if tail is None:
            return events, False
        if tail.removed_at is not None:
            raise record_removed(tail.removed_at)
        for stream, offset, data in tail.pieces:
            if self._told != (stream, offset):
                told = {"type": "output", "stream": STREAM_NAMES[stream], "offset": offset}
                events.append(_message(told))
            events.append(BytesMessage(data))
            self._told = (stream, offset + len(data))
        if tail.ended:
            events += self._ending()
        return events, tail.more

    def _start(self) -> TextMessage:
        command = self._run.command or {}
        head = RunInputHead.objects.filter(pk=self._run.pk).first()
        self._taken = self._received_before()
        return _message(
            {
                "type": "start",
                "runId": str(self._run.pk),
                "terminal": command.get("terminal"),
                "inputOpen": bool(command.get("moreInput")) and not (head and head.ended),
                "inputOffset": self._taken,
            }
        )

    def _received_before(self) -> int:
        """Return how much input the run was given, by whomever."""
        head = RunInputHead.objects.filter(pk=self._run.pk).first()
        given: int = (self._run.command or {}).get("stdinBytes", 0)
        return given if head is None else head.received

    def _ending(self) -> list[Event]:
        run = self._run
        run.refresh_from_db()
        told = {
            "type": "end",
            "status": run.status,
            "exitCode": run.exit_code,
            "exitSignal": run.exit_signal or None,
            "errorCode": run.error_code or None,
            "errorMessage": run.error_message or None,
        }
        return [_message(told), CloseConnection(CloseReason.NORMAL_CLOSURE)]

    def explained(self, error: ControlPlaneError) -> TextMessage:
        """Return the message ``error``, whose ``problem`` is what an answer would be."""
        told = {"type": "error", "problem": problem(error, self._request_id, self._path)}
        return _message(told)


def _is_resize(noted: ControlMessage | bytearray) -> bool:
    return isinstance(noted, ControlMessage) and noted.type == "resize"


def _message(members: dict[str, Any]) -> TextMessage:
    return TextMessage(json.dumps(members, separators=(",", ":"), ensure_ascii=False))
