"""Connections over which calls of the agent report to PID 1."""

from __future__ import annotations

import socket

from runs.agent.boot.reports import Reports


def test_a_call_that_is_gone_when_its_greeting_is_answered_ends_nothing_else() -> None:
    reports = Reports()
    ours, theirs = socket.socketpair()
    theirs.close()

    reports.take(ours)

    assert reports.fds() == []
    assert ours.fileno() == -1


def test_a_call_that_has_greeted_is_answered_and_served() -> None:
    reports = Reports()
    ours, theirs = socket.socketpair()
    with theirs:
        reports.take(ours)
        assert theirs.recv(1) == b"+"
        assert reports.fds() == [ours.fileno()]
        theirs.sendall(b'{"a": 1}\n')
        reports.ready(ours.fileno(), lambda report: report == {"a": 1})
        assert theirs.recv(1) == b"+"
    ours.close()
