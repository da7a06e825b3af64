"""Calls that PID 1 serves itself."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from runs.agent.boot.callers import Callers
from runs.agent.record.resting import SOCKET_NAME


def test_a_caller_for_whom_no_process_can_be_had_is_told_that_its_call_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    callers = Callers(str(tmp_path), lambda arguments: 0)
    ending = tmp_path / "ending"
    (listening,) = callers.fds()
    with socket.socket(socket.AF_UNIX) as caller, ending.open("wb") as told:
        caller.connect(str(tmp_path / SOCKET_NAME))
        callers.ready(listening, lambda report: True)
        (connection,) = set(callers.fds()) - {listening}
        socket.send_fds(caller, [b'{"arguments": ["ports"]}\n'], [told.fileno(), told.fileno()])
        monkeypatch.setattr(os, "fork", refuse)
        assert callers.ready(connection, lambda report: True) is None
        assert caller.recv(2) == b"+"
        assert caller.recv(1) == b""
    assert ending.read_bytes() == b"exit 137\n"
    assert callers.fds() == [listening]
    callers._socket.close()
