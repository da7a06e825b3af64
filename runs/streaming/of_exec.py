"""The answer about an exec that no thread waits for: JSON, when its command has ended."""

from __future__ import annotations

import json
from typing import Any

from rest_framework.utils.encoders import JSONEncoder

from controlplane.errors import ControlPlaneError
from controlplane.http.stream_answers import Piece, Source, Topic
from runs.exec.execs import answer_of, unknown_answer_of
from runs.exec.serializers import ExecSerializer
from runs.models import Run
from runs.streaming.of_run import RUN_EVENTS


class ExecSource(Source):
    """The answer about one run, with line ends before it as long as there is none."""

    def __init__(self, run: Run) -> None:
        self.topics = frozenset({Topic(RUN_EVENTS, str(run.number))})
        self._run = run
        self._left: bytes | None = None

    def read(self, room: int, since: float) -> Piece:
        """Return the next part of the answer; nothing while the run goes on."""
        if self._left is None:
            self._run.refresh_from_db()
            if self._run.status not in Run.TERMINAL:
                return Piece()
            self._left = _json(answer_of(self._run))
            self.is_settled = True
        data, self._left = self._left[:room], self._left[room:]
        self.held = len(self._left)
        return Piece(data, more=bool(self._left), ended=not self._left, whole=False)

    def heartbeat(self) -> bytes:
        """Return what JSON may begin with."""
        return b"\n"

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        """Return that the run goes on: this service ends, and not its runs."""
        if self.is_settled:
            return b""
        # The loop says this: it must not wait for the database.
        return _json(unknown_answer_of(self._run))


def _json(members: dict[str, Any]) -> bytes:
    shown = ExecSerializer(members).data
    return json.dumps(shown, cls=JSONEncoder, ensure_ascii=False).encode()
