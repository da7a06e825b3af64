"""The answer about an exec that no thread waits for: JSON, when its command has ended."""

from __future__ import annotations

import json
from typing import Any

from rest_framework.utils.encoders import JSONEncoder

from controlplane.errors import ControlPlaneError
from controlplane.http.streams import Piece, Source, Topic
from runs.exec_serializers import ExecSerializer
from runs.execs import answer_of
from runs.models import Run
from runs.streaming.of_run import RUN_EVENTS


class ExecSource(Source):
    """The answer about one run, with line ends before it as long as there is none."""

    def __init__(self, run: Run) -> None:
        self.topics = frozenset({Topic(RUN_EVENTS, str(run.number))})
        self._run_id = run.pk
        self._left: bytes | None = None

    def read(self, room: int, since: float) -> Piece:
        """Return the next part of the answer; nothing while the run goes on."""
        if self._left is None:
            run = Run.objects.get(pk=self._run_id)
            if run.status not in Run.TERMINAL:
                return Piece()
            self._left = _json(answer_of(run))
        data, self._left = self._left[:room], self._left[room:]
        return Piece(data, more=bool(self._left), ended=not self._left, whole=False)

    def heartbeat(self) -> bytes:
        """Return what JSON may begin with."""
        return b"\n"

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        """Return that the run goes on: this service ends, and not its runs."""
        run = Run.objects.get(pk=self._run_id)
        return _json(answer_of(run)) if self._left is None else b""


def _json(members: dict[str, Any]) -> bytes:
    shown = ExecSerializer(members).data
    return json.dumps(shown, cls=JSONEncoder, ensure_ascii=False).encode()
